#include "apiserver/memory/builtin.h"

#include "apiserver/memory/event_form.h"
#include "apiserver/memory/object_meta.h"
#include "apiserver/memory/pod.h"
#include "common/net/certificates.h"

#include <algorithm>
#include <cctype>

namespace rubato::kube::builtin {
namespace {

using json::Value;

void set_missing(Value& object, std::string_view key, Value fallback) {
  if (object[key].is_null()) object.set(key, std::move(fallback));
}

void prepare_secret(Value& secret) {
  if (secret["type"].string_view_or("").empty()) secret.set("type", "Opaque");
  const Value plain = secret["stringData"];
  for (const json::Member& m : plain.members())
    secret.at("data").set(m.first, net::base64_encode(m.second.string_or("")));
  secret.erase("stringData");
}

std::optional<ApiError> prepare_service(Value& service, const Lookups& lookups) {
  Value& spec = service.at("spec");
  set_missing(spec, "type", "ClusterIP");
  set_missing(spec, "sessionAffinity", "None");
  set_missing(spec, "internalTrafficPolicy", "Cluster");
  set_missing(spec, "ipFamilies", Value::array({"IPv4"}));
  set_missing(spec, "ipFamilyPolicy", "SingleStack");
  if (spec["clusterIP"].string_view_or("").empty())
    spec.set("clusterIP", lookups.next_cluster_ip());
  if (spec["clusterIP"].string_view_or("").empty())
    return api_error::internal(
        "Internal error occurred: failed to allocate a serviceIP: range is full");
  set_missing(spec, "clusterIPs", Value::array({spec["clusterIP"]}));
  if (spec["ports"].size() > 0)
    for (Value& port : spec.at("ports").mutable_items()) {
      set_missing(port, "protocol", "TCP");
      set_missing(port, "targetPort", port["port"]);
    }
  service.set("status", Value::object({{"loadBalancer", Value::object()}}));
  return std::nullopt;
}

void prepare_crd(Value& crd) {
  Value& names = crd.at("spec").at("names");
  const std::string kind = names["kind"].string_or("");
  set_missing(names, "listKind", kind + "List");
  if (names["singular"].is_null()) {
    std::string singular = kind;
    for (char& c : singular) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    names.set("singular", singular);
  }
  set_missing(crd.at("spec"), "conversion", Value::object({{"strategy", "None"}}));
  crd.erase("status");
}

void prepare_namespace(Value& ns) {
  ns.set("spec", Value::object({{"finalizers", Value::array({"kubernetes"})}}));
  ns.set("status", Value::object({{"phase", "Active"}}));
  ns.at("metadata").at("labels").set("kubernetes.io/metadata.name", name_of(ns));
}

void prepare_volume_claim(Value& claim) {
  set_missing(claim.at("spec"), "volumeMode", "Filesystem");
  claim.set("status", Value::object({{"phase", "Pending"}}));
}

void prepare_volume(Value& volume) {
  set_missing(volume.at("spec"), "volumeMode", "Filesystem");
  set_missing(volume.at("spec"), "persistentVolumeReclaimPolicy", "Retain");
  volume.set("status", Value::object({{"phase", "Pending"}}));
}

void prepare_storage_class(Value& storage_class) {
  set_missing(storage_class, "reclaimPolicy", "Delete");
  set_missing(storage_class, "volumeBindingMode", "Immediate");
}

bool is_config_key(std::string_view key) {
  return !key.empty() && std::ranges::all_of(key, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

void require_names(const Value& crd, std::vector<FieldError>& errors) {
  const Value& spec = crd["spec"];
  for (const char* key : {"plural", "singular", "kind", "listKind"})
    if (spec["names"][key].string_view_or("").empty())
      errors.push_back(field::required(std::string("spec.names.") + key));
  if (spec["group"].string_view_or("").empty()) errors.push_back(field::required("spec.group"));
  const std::string scope = spec["scope"].string_or("");
  if (scope != "Namespaced" && scope != "Cluster")
    errors.push_back(scope.empty()
                         ? field::required("spec.scope")
                         : field::not_supported("spec.scope", scope, {"Cluster", "Namespaced"}));
}

std::vector<FieldError> validate_crd(const Value& crd) {
  std::vector<FieldError> errors;
  require_names(crd, errors);
  const Value& spec = crd["spec"];
  const std::string wanted =
      spec["names"]["plural"].string_or("") + "." + spec["group"].string_or("");
  if (name_of(crd) != wanted)
    errors.push_back(field::invalid("metadata.name", name_of(crd),
                                    "must be spec.names.plural+\".\"+spec.group"));
  std::size_t stored = 0;
  for (std::size_t i = 0; i < spec["versions"].size(); ++i) {
    const Value& version = spec["versions"][i];
    const std::string at = "spec.versions[" + std::to_string(i) + "]";
    stored += version["storage"].bool_or(false) ? 1 : 0;
    if (version["schema"]["openAPIV3Schema"].is_null())
      errors.push_back(field::required(at + ".schema.openAPIV3Schema", "schemas are required"));
    const Value& scale = version["subresources"]["scale"];
    const Value& replicas = scale["specReplicasPath"];  // a scale writes there
    if (!scale.is_null() && !replicas.string_view_or("").starts_with(".spec."))
      errors.push_back(field::invalid(at + ".subresources.scale.specReplicasPath", replicas,
                                      "should be a json path under .spec"));
  }
  if (stored != 1)
    errors.push_back(field::invalid("spec.versions", spec["versions"],
                                    "must have exactly one version marked as storage version"));
  return errors;
}

void check_contents(const Value& object, bool is_secret, std::vector<FieldError>& errors) {
  constexpr std::size_t kBytesMost = 1024 * 1024;
  std::size_t bytes = 0;
  for (const std::string list : {"data", "binaryData"})
    for (const json::Member& entry : object[list].members()) {
      const std::string& key = entry.first;
      const std::string path = list + "[" + key + "]";
      const std::size_t size = entry.second.string_view_or("").size();
      bytes += is_secret || list == "binaryData" ? size / 4 * 3 : size;
      if (!is_config_key(key))
        errors.push_back(field::invalid(
            path, key,
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
            "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
            "'[-._a-zA-Z0-9]+')"));
      if (key == ".") errors.push_back(field::invalid(path, key, "must not be '.'"));
      if (key.starts_with(".."))
        errors.push_back(field::invalid(path, key, "must not start with '..'"));
    }
  if (bytes > kBytesMost)
    errors.push_back({is_secret ? "data" : "[]",
                      "Too long: may not be more than " + std::to_string(kBytesMost) + " bytes",
                      "FieldValueTooLong"});
}

void check_ports(const Value& service, std::vector<FieldError>& errors) {
  const Value& spec = service["spec"];
  if (spec["ports"].size() == 0 && spec["clusterIP"].string_view_or("") != "None" &&
      spec["type"].string_view_or("") != "ExternalName")
    errors.push_back(field::required("spec.ports"));
}

}  // namespace

bool wants_label_name(const ResourceInfo& info) {
  return info.type.group.empty() &&
         (info.type.plural == "namespaces" || info.type.plural == "services");
}

std::optional<ApiError> prepare_create(const ResourceInfo& info, Value& object,
                                       const Lookups& lookups) {
  const std::string& kind = info.type.kind;
  if (kind == "Pod") return pod::prepare_create(info, object, lookups);
  if (kind == "Secret") prepare_secret(object);
  if (kind == "Service") return prepare_service(object, lookups);
  if (kind == "Namespace") prepare_namespace(object);
  if (kind == "PersistentVolumeClaim") prepare_volume_claim(object);
  if (kind == "PersistentVolume") prepare_volume(object);
  if (kind == "CustomResourceDefinition") prepare_crd(object);
  if (kind == "StorageClass") prepare_storage_class(object);
  if (kind == "PriorityClass") set_missing(object, "preemptionPolicy", "PreemptLowerPriority");
  return std::nullopt;
}

void prepare_update(const ResourceInfo& info, const Value& old_object, Value& new_object) {
  const std::string& kind = info.type.kind;
  if (kind == "Secret") prepare_secret(new_object);
  if (kind == "Namespace") new_object.set("spec", old_object["spec"]);
  if (kind == "Service") {
    Value& spec = new_object.at("spec");
    for (const char* key : {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "type",
                            "sessionAffinity", "internalTrafficPolicy"})
      set_missing(spec, key, old_object["spec"][key]);
  }
  if (kind == "CustomResourceDefinition") {
    Value status = new_object["status"];
    prepare_crd(new_object);
    if (!status.is_null()) new_object.set("status", std::move(status));
  }
}

std::vector<FieldError> validate_create(const ResourceInfo& info, const Value& object) {
  const std::string& kind = info.type.kind;
  if (kind == "Pod") return pod::validate_create(object);
  if (kind == "CustomResourceDefinition") return validate_crd(object);
  std::vector<FieldError> errors;
  if (kind == "ConfigMap" || kind == "Secret") check_contents(object, kind == "Secret", errors);
  if (kind == "Service") check_ports(object, errors);
  if (kind == "PersistentVolumeClaim" && object["spec"]["accessModes"].size() == 0)
    errors.push_back(field::required("spec.accessModes", "at least 1 access mode is required"));
  if (kind == "StorageClass" && object["provisioner"].string_view_or("").empty())
    errors.push_back(field::required("provisioner"));
  if (kind == "Lease") {
    const Value& seconds = object["spec"]["leaseDurationSeconds"];
    if (seconds.is_int() && seconds.int_or(0) <= 0)
      errors.push_back(
          field::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
  }
  return errors;
}

std::vector<FieldError> validate_update(const ResourceInfo& info, const Value& old_object,
                                        const Value& new_object) {
  const std::string& kind = info.type.kind;
  if (kind == "Pod") return pod::validate_update(old_object, new_object);
  std::vector<FieldError> errors = validate_create(info, new_object);
  if ((kind == "Secret" || kind == "ConfigMap") && old_object["immutable"].bool_or(false) &&
      (!(old_object["data"] == new_object["data"]) || !new_object["immutable"].bool_or(false)))
    errors.push_back(field::forbidden("data", "field is immutable when `immutable` is set"));
  if (kind == "Secret" && !(old_object["type"] == new_object["type"]))
    errors.push_back(field::invalid("type", new_object["type"], "field is immutable"));
  if (kind == "StorageClass")
    for (const char* key : {"parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"})
      if (!(old_object[key] == new_object[key]))
        errors.push_back(
            field::forbidden(key, "updates to " + std::string(key) + " are forbidden."));
  if (kind == "PriorityClass" && !(old_object["value"] == new_object["value"]))
    errors.push_back(field::forbidden("value", "may not be changed in an update."));
  return errors;
}

}  // namespace rubato::kube::builtin
