#include "tools/rubatoctl/resources.h"

#include "operator/api/kinds.h"

#include <algorithm>
#include <cctype>
#include <optional>

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

// One of many, or many, with the group or without: "pod", "pods", "trainingjob.rubato.dev" as we
// print names.
bool is_word_of(const kube::ResourceType& type, const std::string& singular,
                const std::string& word) {
  const std::string in_group = "." + type.group;
  return word == singular || word == type.plural || word == singular + in_group ||
         word == type.plural + in_group;
}

const kube::ResourceType* ours(const std::string& word) {
  for (const api::Kind& kind : api::kinds())
    if (word == kind.short_name || is_word_of(kind.type, kind.singular, word)) return &kind.type;
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

ReadPath reader_of(kube::RestClient& client) {
  return [&client](const std::string& path) { return client.get_raw(path); };
}

Result<json::Value> read_json(const ReadPath& read, const std::string& path) {
  TRY(const std::string body, read(path));
  return json::parse(body);
}

bool is_called(const json::Value& resource, const kube::ResourceType& type,
               const std::string& word) {
  if (type.plural.find('/') != std::string::npos) return false;
  const auto& shorts = resource["shortNames"].items();
  return is_word_of(type, lower(type.kind), word) ||
         word == resource["singularName"].string_view_or("") ||
         std::any_of(shorts.begin(), shorts.end(),
                     [&](const auto& name) { return name.string_view_or("") == word; });
}

constexpr const char* kInstallAdvice =
    "are the CustomResourceDefinitions installed? (`kubectl apply --server-side -f crds/`)";

}  // namespace

Result<kube::ResourceType> resource_named(const ReadPath& read, const std::string& given) {
  const std::string word = lower(given);
  if (word.empty()) return Error(Code::kInvalid, "a kind may not be empty: tj, pods, nodes …");
  if (word.find(',') != std::string::npos)
    return Error(Code::kInvalid, "one kind at a time, not \"" + given + "\"");
  if (const auto* type = ours(word)) return *type;
  if (const auto* type = builtin(word)) return *type;
  TRY(const json::Value groups, read_json(read, "/apis"));
  std::vector<std::string> versions{"v1"};
  for (const auto& group : groups["groups"].items())
    versions.push_back(group["preferredVersion"]["groupVersion"].string_or(""));
  std::optional<Error> unread;
  for (const std::string& version : versions) {
    const auto list = read_json(read, path_of(version));
    if (!list.ok()) {
      if (!unread) unread = list.error();
      continue;
    }
    for (const auto& resource : (*list)["resources"].items()) {
      kube::ResourceType type = described(version, resource);
      if (is_called(resource, type, word)) return type;
    }
  }
  if (unread) return unread->in("looking for \"" + given + "\"");
  return Error(Code::kNotFound,
               "this server has no resource \"" + given +
                   "\"\n  What to do: try tj, pods, nodes, queues, pvc, events, secrets …; " +
                   kInstallAdvice);
}

Result<kube::ResourceType> resource_named(kube::RestClient& client, const std::string& word) {
  return resource_named(reader_of(client), word);
}

Result<kube::ResourceType> resource_of_kind(kube::RestClient& client,
                                            const std::string& api_version,
                                            const std::string& kind) {
  const auto list = read_json(reader_of(client), path_of(api_version));
  if (!list.ok() && list.error().code() != Code::kNotFound) return list.error();
  if (list.ok()) {
    for (const auto& resource : (*list)["resources"].items())
      if (resource["kind"].string_view_or("") == kind &&
          resource["name"].string_view_or("").find('/') == std::string_view::npos)
        return described(api_version, resource);
  }
  return Error(Code::kNotFound, "this server knows no kind \"" + kind + "\" in \"" + api_version +
                                    "\"\n  What to do: check apiVersion and kind; " +
                                    kInstallAdvice);
}

std::string display_name(const kube::ResourceType& type, const std::string& name) {
  return lower(type.kind) + (type.group.empty() ? "" : "." + type.group) + "/" + name;
}

}  // namespace rubato::ctl
