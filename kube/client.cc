#include "kube/client.h"

namespace rubato::kube {

std::string to_string(const Key& key) {
  return key.ns.empty() ? key.name : key.ns + "/" + key.name;
}

Key parse_key(std::string_view text) {
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return Key{"", std::string(text)};
  return Key{std::string(text.substr(0, slash)), std::string(text.substr(slash + 1))};
}

Status check_key(const Key& key) {
  if (key.name.empty()) return Error(Code::kInvalid, "a name may not be empty");
  for (const std::string& part : {key.name, key.ns})
    if (part == "." || part == "..")
      return Error(Code::kInvalid, "a name may not be \"" + part + "\"");
  return ok();
}

Result<json::Value> WatchEvent::object() const {
  if (raw.empty()) return value;
  return json::parse(raw);
}

namespace types {
const ResourceType kPod{"", "v1", "pods", "Pod", true};
const ResourceType kNode{"", "v1", "nodes", "Node", false};
const ResourceType kNamespace{"", "v1", "namespaces", "Namespace", false};
const ResourceType kSecret{"", "v1", "secrets", "Secret", true};
const ResourceType kConfigMap{"", "v1", "configmaps", "ConfigMap", true};
const ResourceType kService{"", "v1", "services", "Service", true};
const ResourceType kEvent{"events.k8s.io", "v1", "events", "Event", true};
const ResourceType kLease{"coordination.k8s.io", "v1", "leases", "Lease", true};
const ResourceType kPersistentVolumeClaim{"", "v1", "persistentvolumeclaims",
                                          "PersistentVolumeClaim", true};
const ResourceType kPersistentVolume{"", "v1", "persistentvolumes", "PersistentVolume", false};
const ResourceType kStorageClass{"storage.k8s.io", "v1", "storageclasses", "StorageClass", false};
const ResourceType kPriorityClass{"scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass",
                                  false};
const ResourceType kCustomResourceDefinition{
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false};
const ResourceType kServiceAccount{"", "v1", "serviceaccounts", "ServiceAccount", true};
}  // namespace types

std::string name_of(const json::Value& object) { return object["metadata"]["name"].string_or(""); }
std::string namespace_of(const json::Value& object) {
  return object["metadata"]["namespace"].string_or("");
}
std::string uid_of(const json::Value& object) { return object["metadata"]["uid"].string_or(""); }
std::string resource_version_of(const json::Value& object) {
  return object["metadata"]["resourceVersion"].string_or("");
}
Key key_of(const json::Value& object) { return Key{namespace_of(object), name_of(object)}; }

}  // namespace rubato::kube
