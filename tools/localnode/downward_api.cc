#include "tools/localnode/downward_api.h"

#include "kube/quantity.h"

#include <map>

namespace rubato::localnode {

namespace {

Result<std::int64_t> quantity_milli(const json::Value& amount) {
  return kube::parse_quantity_milli(amount.is_string() ? amount.string_or("") : json::dump(amount));
}

// All labels or annotations, as a kubelet writes them.
std::string map_lines(const json::Value& map) {
  std::map<std::string, std::string> sorted;
  for (const auto& [key, text] : map.members()) sorted[key] = json::dump(text);
  std::string lines;
  for (const auto& [key, text] : sorted) lines += (lines.empty() ? "" : "\n") + key + "=" + text;
  return lines;
}

}  // namespace

Result<std::string> field_of(const json::Value& pod, const std::string& path) {
  const auto& metadata = pod["metadata"];
  if (path == "metadata.name") return metadata["name"].string_or("");
  if (path == "metadata.namespace") return metadata["namespace"].string_or("");
  if (path == "metadata.uid") return metadata["uid"].string_or("");
  if (path == "spec.nodeName") return pod["spec"]["nodeName"].string_or("");
  if (path == "spec.serviceAccountName")
    return pod["spec"]["serviceAccountName"].string_or("default");
  // One address of each: the lists are of one.
  if (path == "status.podIP" || path == "status.podIPs")
    return pod["status"]["podIP"].string_or("");
  if (path == "status.hostIP" || path == "status.hostIPs")
    return pod["status"]["hostIP"].string_or("");
  for (const char* map : {"labels", "annotations"}) {
    const std::string prefix = std::string("metadata.") + map + "['";
    if (path.starts_with(prefix) && path.ends_with("']")) {
      const std::string key = path.substr(prefix.size(), path.size() - prefix.size() - 2);
      return metadata[map][key].string_or("");
    }
  }
  return Error(Code::kInvalid, "the downward API field \"" + path + "\" is not known here");
}

Result<std::string> resource_of(const json::Value& pod, const std::string& container,
                                const json::Value& ref) {
  const std::string name = ref["containerName"].string_or(container);
  const std::string resource = ref["resource"].string_or("");
  const std::size_t dot = resource.find('.');
  const std::string kind = resource.substr(0, dot);
  const std::string what = dot == std::string::npos ? "" : resource.substr(dot + 1);
  if ((kind != "limits" && kind != "requests") || what.empty())
    return Error(Code::kInvalid, "resourceFieldRef names \"" + resource +
                                     "\"; name limits or requests, as in limits.memory");
  for (const char* list : {"containers", "initContainers"})
    for (const auto& known : pod["spec"][list].items()) {
      if (known["name"].string_view_or("") != name) continue;
      const json::Value& resources = known["resources"];
      const json::Value* amount = resources[kind].find(what);
      if (amount == nullptr) amount = resources["limits"].find(what);
      if (amount == nullptr && kind == "limits")
        return Error(Code::kInvalid, "resourceFieldRef names " + resource + " of container \"" +
                                         name + "\", which has none; set it");
      if (amount == nullptr) return std::string("0");
      TRY(const std::int64_t milli, quantity_milli(*amount));
      const json::Value* by = ref.find("divisor");
      const std::int64_t divisor = by == nullptr ? 0 : quantity_milli(*by).value_or(0);
      const std::int64_t unit = divisor > 0 ? divisor : 1000;
      return std::to_string(milli / unit + (milli % unit > 0 ? 1 : 0));
    }
  return Error(Code::kInvalid, "resourceFieldRef names the container \"" + name +
                                   "\", which the pod has not; set containerName");
}

Result<std::string> downward_file(const json::Value& pod, const json::Value& item) {
  if (item["resourceFieldRef"].is_object()) return resource_of(pod, "", item["resourceFieldRef"]);
  const std::string path = item["fieldRef"]["fieldPath"].string_or("");
  for (const char* map : {"labels", "annotations"})
    if (path == std::string("metadata.") + map) return map_lines(pod["metadata"][map]);
  return field_of(pod, path);
}

}  // namespace rubato::localnode
