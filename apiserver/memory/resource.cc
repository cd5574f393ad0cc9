#include "apiserver/memory/resource.h"

#include "apiserver/memory/api_error.h"

namespace rubato::kube {
namespace {

ResourceInfo builtin_info(const std::string& group, const std::string& version,
                          const std::string& plural, const std::string& kind, bool namespaced,
                          const std::string& singular, std::vector<std::string> short_names = {}) {
  ResourceInfo info;
  info.type = {group, version, plural, kind, namespaced};
  info.singular = singular;
  info.list_kind = kind + "List";
  info.short_names = std::move(short_names);
  info.storage_id = api_error::qualified(plural, group);
  return info;
}

ResourceInfo with_status(ResourceInfo info) {
  info.has_status = true;
  return info;
}

std::vector<ResourceInfo> make_builtins() {
  std::vector<ResourceInfo> all;
  ResourceInfo pod = with_status(builtin_info("", "v1", "pods", "Pod", true, "pod", {"po"}));
  pod.categories = {"all"};
  pod.has_generation = true;
  pod.returns_deleted = true;
  all.push_back(std::move(pod));
  all.push_back(with_status(builtin_info("", "v1", "nodes", "Node", false, "node", {"no"})));
  ResourceInfo ns =
      with_status(builtin_info("", "v1", "namespaces", "Namespace", false, "namespace", {"ns"}));
  ns.returns_deleted = true;
  ns.deletes_collection = false;
  all.push_back(std::move(ns));
  all.push_back(builtin_info("", "v1", "secrets", "Secret", true, "secret"));
  all.push_back(builtin_info("", "v1", "configmaps", "ConfigMap", true, "configmap", {"cm"}));
  ResourceInfo service =
      with_status(builtin_info("", "v1", "services", "Service", true, "service", {"svc"}));
  service.categories = {"all"};
  service.returns_deleted = true;
  all.push_back(std::move(service));
  ResourceInfo account =
      builtin_info("", "v1", "serviceaccounts", "ServiceAccount", true, "serviceaccount", {"sa"});
  account.returns_deleted = true;
  all.push_back(std::move(account));
  ResourceInfo claim =
      with_status(builtin_info("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true,
                               "persistentvolumeclaim", {"pvc"}));
  claim.returns_deleted = true;
  all.push_back(std::move(claim));
  ResourceInfo volume = with_status(builtin_info("", "v1", "persistentvolumes", "PersistentVolume",
                                                 false, "persistentvolume", {"pv"}));
  volume.returns_deleted = true;
  all.push_back(std::move(volume));
  ResourceInfo event = builtin_info("", "v1", "events", "Event", true, "event", {"ev"});
  event.create_on_update = true;
  event.storage_id = "events";
  all.push_back(event);
  event.type.group = "events.k8s.io";
  all.push_back(std::move(event));
  ResourceInfo lease = builtin_info("coordination.k8s.io", "v1", "leases", "Lease", true, "lease");
  lease.unconditional_update = false;
  lease.create_on_update = true;
  all.push_back(std::move(lease));
  all.push_back(builtin_info("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false,
                             "priorityclass", {"pc"}));
  ResourceInfo storage_class = builtin_info("storage.k8s.io", "v1", "storageclasses",
                                            "StorageClass", false, "storageclass", {"sc"});
  storage_class.returns_deleted = true;
  all.push_back(std::move(storage_class));
  ResourceInfo crd = with_status(
      builtin_info("apiextensions.k8s.io", "v1", "customresourcedefinitions",
                   "CustomResourceDefinition", false, "customresourcedefinition", {"crd", "crds"}));
  crd.categories = {"api-extensions"};
  crd.has_generation = true;
  crd.unconditional_update = false;
  crd.returns_deleted = true;
  all.push_back(std::move(crd));
  return all;
}

std::vector<std::string> strings(const json::Value& list) {
  std::vector<std::string> out;
  for (const json::Value& item : list.items()) out.push_back(item.string_or(""));
  return out;
}

std::vector<PrinterColumn> columns_of(const json::Value& version) {
  std::vector<PrinterColumn> out;
  for (const json::Value& c : version["additionalPrinterColumns"].items())
    out.push_back({c["name"].string_or(""), c["type"].string_or("string"),
                   c["format"].string_or(""), c["description"].string_or(""),
                   static_cast<int>(c["priority"].int_or(0)), c["jsonPath"].string_or("")});
  if (out.empty())
    out.push_back(
        {"Age", "date", "", "When the object was created.", 0, ".metadata.creationTimestamp"});
  return out;
}

}  // namespace

const std::vector<ResourceInfo>& builtin_resources() {
  static const std::vector<ResourceInfo> kAll = make_builtins();
  return kAll;
}

Result<std::vector<ResourceInfo>> resources_of_crd(const json::Value& crd) {
  const json::Value& spec = crd["spec"];
  const json::Value& names = spec["names"];
  const std::string group = spec["group"].string_or("");
  const std::string plural = names["plural"].string_or("");
  const std::string kind = names["kind"].string_or("");
  if (group.empty() || plural.empty() || kind.empty())
    return Error(Code::kInvalid, "a CRD needs spec.group, spec.names.plural and spec.names.kind");
  std::vector<ResourceInfo> out;
  for (const json::Value& version : spec["versions"].items()) {
    if (!version["served"].bool_or(false)) continue;
    ResourceInfo info = builtin_info(group, version["name"].string_or(""), plural, kind,
                                     spec["scope"].string_or("Namespaced") == "Namespaced",
                                     names["singular"].string_or(""), strings(names["shortNames"]));
    if (!names["listKind"].is_null()) info.list_kind = names["listKind"].string_or("");
    info.categories = strings(names["categories"]);
    info.custom = true;
    info.has_generation = true;
    info.unconditional_update = false;
    info.schema = version["schema"]["openAPIV3Schema"];
    info.columns = columns_of(version);
    const json::Value& sub = version["subresources"];
    info.has_status = sub.has("status");
    if (const json::Value* scale = sub.find("scale"))
      info.scale = {(*scale)["specReplicasPath"].string_or(""),
                    (*scale)["statusReplicasPath"].string_or(""),
                    (*scale)["labelSelectorPath"].string_or("")};
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace rubato::kube
