#include "apiserver/memory/field_selector.h"

#include <algorithm>
#include <map>

namespace rubato::kube {
namespace {

using json::Value;

const std::map<std::string, std::vector<std::string>>& offered() {
  static const std::map<std::string, std::vector<std::string>> kFields = {
      {"pods",
       {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"}},
      {"nodes", {"spec.unschedulable"}},
      {"namespaces", {"status.phase", "name"}},
      {"secrets", {"type"}},
      {"services", {"spec.clusterIP", "spec.type"}},
      {"persistentvolumes", {"name"}},
      {"persistentvolumeclaims", {"name"}},
      {"events",
       {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
        "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid"}},
  };
  return kFields;
}

const Value& at_path(const Value& object, std::string_view path) {
  const Value* here = &object;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    here = &(*here)[path.substr(0, dot)];
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  return *here;
}

std::optional<std::string_view> lookup(const Value& object, std::string_view path) {
  if (path == "name") return object["metadata"]["name"].string_view_or("");
  if (path == "source" && object["source"].is_object())
    return object["source"]["component"].string_view_or("");
  std::string renamed;
  if (path.starts_with("regarding.")) {
    renamed = "involvedObject." + std::string(path.substr(10));
    path = renamed;
  }
  const Value& value = at_path(object, path);
  if (value.is_bool()) return value.bool_or(false) ? "true" : "false";
  if (value.is_null() && (path == "spec.unschedulable" || path == "spec.hostNetwork"))
    return "false";
  return value.string_view_or("");
}

}  // namespace

Answer<Selector> parse_field_selector(const ResourceInfo& info, const std::string& text) {
  auto parsed = Selector::parse_fields(text);
  if (!parsed.ok()) return api_error::bad_request(parsed.error().what());
  const auto mine = offered().find(info.storage_id);
  for (const Requirement& r : parsed->requirements()) {
    if (r.key == "metadata.name" || (r.key == "metadata.namespace" && info.type.namespaced))
      continue;
    if (mine == offered().end() && !info.custom)
      return api_error::bad_request("\"" + r.key +
                                    "\" is not a known field selector: only \"metadata.name\", "
                                    "\"metadata.namespace\"");
    if (mine == offered().end() || std::ranges::find(mine->second, r.key) == mine->second.end())
      return api_error::bad_request("field label not supported: " + r.key);
  }
  return std::move(parsed).value();
}

Answer<Selector> parse_label_selector(const std::string& text) {
  auto parsed = Selector::parse_labels(text);
  if (!parsed.ok()) return api_error::bad_request(parsed.error().what());
  return std::move(parsed).value();
}

bool matches_field_selector(const Selector& selector, const Value& object) {
  if (selector.empty()) return true;
  return selector.matches([&](std::string_view path) { return lookup(object, path); });
}

}  // namespace rubato::kube
