#include "tools/rubatoctl/resources.h"

#include "operator/api/kinds.h"

#include <algorithm>
#include <cctype>

namespace rubato::ctl {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

struct Alias {
  const char* word;
  const kube::ResourceType* type;
};

const kube::ResourceType* builtin(const std::string& word) {
  static const std::vector<Alias> kAliases{
      {"po", &kube::types::kPod},
      {"no", &kube::types::kNode},
      {"ns", &kube::types::kNamespace},
      {"cm", &kube::types::kConfigMap},
      {"svc", &kube::types::kService},
      {"ev", &kube::types::kEvent},
      {"sa", &kube::types::kServiceAccount},
      {"pvc", &kube::types::kPersistentVolumeClaim},
      {"pv", &kube::types::kPersistentVolume},
      {"sc", &kube::types::kStorageClass},
      {"pc", &kube::types::kPriorityClass},
      {"crd", &kube::types::kCustomResourceDefinition},
  };
  for (const Alias& alias : kAliases)
    if (word == alias.word) return alias.type;
  for (const auto* type :
       {&kube::types::kPod, &kube::types::kNode, &kube::types::kNamespace, &kube::types::kSecret,
        &kube::types::kConfigMap, &kube::types::kService, &kube::types::kEvent,
        &kube::types::kLease, &kube::types::kPersistentVolumeClaim, &kube::types::kPersistentVolume,
        &kube::types::kStorageClass, &kube::types::kPriorityClass,
        &kube::types::kCustomResourceDefinition, &kube::types::kServiceAccount})
    if (word == type->plural || word == lower(type->kind)) return type;
  return nullptr;
}

const kube::ResourceType* ours(const std::string& word) {
  for (const api::Kind& kind : api::kinds())
    if (word == kind.short_name || word == kind.singular || word == kind.type.plural ||
        word == kind.type.plural + "." + kind.type.group)
      return &kind.type;
  if (word == "jobs" || word == "job") return ours("tj");
  if (word == "queues" || word == "queue") return ours("tq");
  return nullptr;
}

std::string path_of(const std::string& api_version) {
  return (api_version.find('/') == std::string::npos ? "/api/" : "/apis/") + api_version;
}

kube::ResourceType described(const std::string& api_version, const json::Value& resource) {
  const auto slash = api_version.find('/');
  kube::ResourceType type;
  type.group = slash == std::string::npos ? "" : api_version.substr(0, slash);
  type.version = slash == std::string::npos ? api_version : api_version.substr(slash + 1);
  type.plural = resource["name"].string_or("");
  type.kind = resource["kind"].string_or("");
  type.namespaced = resource["namespaced"].bool_or(true);
  return type;
}

Result<json::Value> resources_of(kube::RestClient& client, const std::string& api_version) {
  TRY(const std::string body, client.get_raw(path_of(api_version)));
  return json::parse(body);
}

}  // namespace

Result<kube::ResourceType> resource_named(kube::RestClient& client, const std::string& given) {
  const std::string word = lower(given);
  if (word.find(',') != std::string::npos)
    return Error(Code::kInvalid, "one kind at a time, not \"" + given + "\"");
  if (const auto* type = ours(word)) return *type;
  if (const auto* type = builtin(word)) return *type;
  TRY(const std::string body, client.get_raw("/apis"));
  TRY(const json::Value groups, json::parse(body));
  for (const auto& group : groups["groups"].items()) {
    const std::string version = group["preferredVersion"]["groupVersion"].string_or("");
    TRY(const json::Value list, resources_of(client, version));
    for (const auto& resource : list["resources"].items()) {
      const std::string plural = resource["name"].string_or("");
      if (plural.find('/') != std::string::npos) continue;
      const auto& shorts = resource["shortNames"].items();
      if (word == plural || word == resource["singularName"].string_view_or("") ||
          word == lower(resource["kind"].string_or("")) ||
          word == plural + "." + group["name"].string_or("") ||
          std::any_of(shorts.begin(), shorts.end(),
                      [&](const auto& name) { return name.string_view_or("") == word; }))
        return described(version, resource);
    }
  }
  return Error(Code::kNotFound,
               "this server has no resource \"" + given +
                   "\"\n  What to do: try tj, pods, nodes, queues, pvc, events, secrets …; are the "
                   "CustomResourceDefinitions installed? (`rubatoctl apply -f crds`)");
}

Result<kube::ResourceType> resource_of_kind(kube::RestClient& client,
                                            const std::string& api_version,
                                            const std::string& kind) {
  const auto list = resources_of(client, api_version);
  if (!list.ok() && list.error().code() != Code::kNotFound) return list.error();
  if (list.ok()) {
    for (const auto& resource : (*list)["resources"].items())
      if (resource["kind"].string_view_or("") == kind &&
          resource["name"].string_view_or("").find('/') == std::string_view::npos)
        return described(api_version, resource);
  }
  return Error(Code::kNotFound, "this server knows no kind \"" + kind + "\" in \"" + api_version +
                                    "\"\n  What to do: check apiVersion and kind; are the "
                                    "CustomResourceDefinitions installed? (`rubatoctl apply -f "
                                    "crds`)");
}

std::string display_name(const kube::ResourceType& type, const std::string& name) {
  return lower(type.kind) + (type.group.empty() ? "" : "." + type.group) + "/" + name;
}

}  // namespace rubato::ctl
