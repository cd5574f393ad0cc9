#include "apiserver/memory/pod.h"

#include "apiserver/memory/object_meta.h"

#include <algorithm>

namespace rubato::kube::pod {
namespace {

using json::Value;

constexpr std::int64_t kDefaultGraceSeconds = 30;
constexpr std::int64_t kGraceSecondsMost = 1 << 30;

void set_missing(Value& object, std::string_view key, Value fallback) {
  if (object[key].is_null()) object.set(key, std::move(fallback));
}

std::string pull_policy(const std::string& image) {
  const std::size_t slash = image.rfind('/');
  const std::string last = slash == std::string::npos ? image : image.substr(slash + 1);
  if (last.find('@') != std::string::npos) return "IfNotPresent";
  const std::size_t colon = last.find(':');
  const bool latest = colon == std::string::npos || last.substr(colon + 1) == "latest";
  return latest ? "Always" : "IfNotPresent";
}

void default_probe(Value& container, const char* key) {
  if (container[key].is_null()) return;
  Value& probe = container.at(key);
  set_missing(probe, "timeoutSeconds", 1);
  set_missing(probe, "periodSeconds", 10);
  set_missing(probe, "successThreshold", 1);
  set_missing(probe, "failureThreshold", 3);
}

void default_container(Value& container) {
  set_missing(container, "resources", Value::object());
  set_missing(container, "terminationMessagePath", "/dev/termination-log");
  set_missing(container, "terminationMessagePolicy", "File");
  set_missing(container, "imagePullPolicy", pull_policy(container["image"].string_or("")));
  for (const char* probe : {"livenessProbe", "readinessProbe", "startupProbe"})
    default_probe(container, probe);
  if (const Value limits = container["resources"]["limits"]; limits.size() > 0) {
    Value& requests = container.at("resources").at("requests");
    for (const json::Member& limit : limits.members())
      set_missing(requests, limit.first, limit.second);
  }
  if (container["ports"].size() > 0)
    for (Value& port : container.at("ports").mutable_items()) set_missing(port, "protocol", "TCP");
  if (container["env"].size() > 0)
    for (Value& env : container.at("env").mutable_items())
      if (!env["valueFrom"]["fieldRef"].is_null())
        set_missing(env.at("valueFrom").at("fieldRef"), "apiVersion", "v1");
}

void default_volumes(Value& spec) {
  if (spec["volumes"].size() == 0) return;
  for (Value& volume : spec.at("volumes").mutable_items()) {
    if (volume.size() <= 1) set_missing(volume, "emptyDir", Value::object());
    for (const char* kind : {"secret", "configMap", "downwardAPI", "projected"})
      if (!volume[kind].is_null()) set_missing(volume.at(kind), "defaultMode", 420);
  }
}

std::string quality_of_service(const Value& spec) {
  bool any = false;
  bool guaranteed = true;
  for (const Value& container : spec["containers"].items()) {
    const Value& requests = container["resources"]["requests"];
    const Value& limits = container["resources"]["limits"];
    for (const char* resource : {"cpu", "memory"}) {
      any = any || requests.has(resource) || limits.has(resource);
      guaranteed = guaranteed && limits.has(resource) && requests[resource] == limits[resource];
    }
  }
  return !any ? "BestEffort" : guaranteed ? "Guaranteed" : "Burstable";
}

void default_spec(Value& spec) {
  for (const char* list : {"initContainers", "containers"})
    if (spec[list].size() > 0)
      for (Value& container : spec.at(list).mutable_items()) default_container(container);
  default_volumes(spec);
  set_missing(spec, "restartPolicy", "Always");
  set_missing(spec, "terminationGracePeriodSeconds", kDefaultGraceSeconds);
  set_missing(spec, "dnsPolicy", "ClusterFirst");
  set_missing(spec, "securityContext", Value::object());
  set_missing(spec, "schedulerName", "default-scheduler");
  set_missing(spec, "enableServiceLinks", true);
  set_missing(spec, "serviceAccountName", "default");
  set_missing(spec, "serviceAccount", spec["serviceAccountName"]);
}

// Admission "DefaultTolerationSeconds": five minutes on a lost node.
void default_tolerations(Value& spec) {
  for (const char* key : {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}) {
    const bool has = std::ranges::any_of(spec["tolerations"].items(), [&](const Value& t) {
      const std::string_view effect = t["effect"].string_view_or("");
      const std::string_view wanted = t["key"].string_view_or("");
      return (wanted == key || wanted.empty()) && (effect == "NoExecute" || effect.empty());
    });
    if (!has)
      spec.at("tolerations")
          .push_back(Value::object({{"key", key},
                                    {"operator", "Exists"},
                                    {"effect", "NoExecute"},
                                    {"tolerationSeconds", 300}}));
  }
}

void check_containers(const Value& list, const std::string& path, std::vector<FieldError>& errors,
                      std::vector<std::string>& names) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    const std::string name = list[i]["name"].string_or("");
    if (name.empty())
      errors.push_back(field::required(at + ".name"));
    else if (!is_dns_label(name))
      errors.push_back(field::invalid(
          at + ".name", name,
          "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
          "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
          "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"));
    else if (std::ranges::find(names, name) != names.end())
      errors.push_back(field::duplicate(at + ".name", name));
    names.push_back(name);
    if (list[i]["image"].string_view_or("").empty())
      errors.push_back(field::required(at + ".image"));
  }
}

Value without_mutable(Value spec) {
  for (const char* list : {"containers", "initContainers"})
    if (spec[list].size() > 0)
      for (Value& container : spec.at(list).mutable_items()) container.set("image", "");
  for (const char* key :
       {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"})
    spec.erase(key);
  return spec;
}

bool keeps_tolerations(const Value& old_spec, const Value& new_spec) {
  return std::ranges::all_of(old_spec["tolerations"].items(), [&](const Value& t) {
    return std::ranges::find(new_spec["tolerations"].items(), t) !=
           new_spec["tolerations"].items().end();
  });
}

}  // namespace

std::optional<ApiError> prepare_create(const ResourceInfo& info, Value& pod,
                                       const builtin::Lookups& lookups) {
  Value& spec = pod.at("spec");
  if (!spec.is_object()) return std::nullopt;  // validation refuses it
  default_spec(spec);
  const std::string name = spec["priorityClassName"].string_or("");
  if (!name.empty()) {
    const Value found = lookups.priority_class(name);
    if (found.is_null())
      return api_error::forbidden(info.type, name_of(pod),
                                  "no PriorityClass with name " + name + " was found");
    spec.set("priority", found["value"]);
    set_missing(spec, "preemptionPolicy",
                found["preemptionPolicy"].string_or("PreemptLowerPriority"));
  } else {
    set_missing(spec, "priority", 0);
    set_missing(spec, "preemptionPolicy", "PreemptLowerPriority");
  }
  default_tolerations(spec);
  const std::string quality = quality_of_service(spec);
  pod.set("status", Value::object({{"phase", "Pending"}, {"qosClass", quality}}));
  return std::nullopt;
}

std::vector<FieldError> validate_create(const Value& pod) {
  std::vector<FieldError> errors;
  const Value& spec = pod["spec"];
  if (spec["containers"].size() == 0) errors.push_back(field::required("spec.containers"));
  std::vector<std::string> names;
  check_containers(spec["initContainers"], "spec.initContainers", errors, names);
  check_containers(spec["containers"], "spec.containers", errors, names);
  const std::string policy = spec["restartPolicy"].string_or("Always");
  if (policy != "Always" && policy != "OnFailure" && policy != "Never")
    errors.push_back(
        field::not_supported("spec.restartPolicy", policy, {"Always", "OnFailure", "Never"}));
  return errors;
}

std::vector<FieldError> validate_update(const Value& old_pod, const Value& new_pod) {
  std::vector<FieldError> errors;
  const Value& old_spec = old_pod["spec"];
  const Value& new_spec = new_pod["spec"];
  if (old_spec == new_spec) return errors;
  if (!keeps_tolerations(old_spec, new_spec))
    errors.push_back(field::forbidden("spec.tolerations",
                                      "existing toleration can not be modified except its "
                                      "tolerationSeconds"));
  if (!(without_mutable(old_spec) == without_mutable(new_spec)))
    errors.push_back(field::forbidden(
        "spec",
        "pod updates may not change fields other than `spec.containers[*].image`,"
        "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
        "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
        "set to 1 if it was previously negative)"));
  return errors;
}

int asked_grace(std::int64_t seconds) {
  return static_cast<int>(std::clamp<std::int64_t>(seconds, -1, kGraceSecondsMost));
}

std::int64_t grace_seconds(const Value& pod, std::int64_t asked) {
  const std::string_view phase = pod["status"]["phase"].string_view_or("");
  if (pod["spec"]["nodeName"].string_view_or("").empty() || phase == "Failed" ||
      phase == "Succeeded")
    return 0;
  if (asked >= 0) return asked;
  const std::int64_t own =
      pod["spec"]["terminationGracePeriodSeconds"].int_or(kDefaultGraceSeconds);
  return own < 0 ? 1 : std::min(own, kGraceSecondsMost);
}

Answer<Value> bind(const ResourceInfo& info, Value pod, const Value& binding,
                   const std::string& now) {
  const std::string name = name_of(pod);
  ResourceType type = info.type;
  type.plural = "pods/binding";
  const std::string wanted_uid = binding["metadata"]["uid"].string_or("");
  if (!wanted_uid.empty() && wanted_uid != uid_of(pod))
    return api_error::conflict(type, name,
                               "Precondition failed: UID in precondition: " + wanted_uid +
                                   ", UID in object meta: " + uid_of(pod));
  const std::string kind = binding["target"]["kind"].string_or("");
  const std::string node = binding["target"]["name"].string_or("");
  ResourceType binding_type{"", "v1", "bindings", "Binding", true};
  if (!kind.empty() && kind != "Node")
    return api_error::invalid(binding_type, name,
                              {field::not_supported("target.kind", kind, {"Node", "<empty>"})});
  if (node.empty()) return api_error::invalid(binding_type, name, {field::required("target.name")});
  if (is_deleting(pod))
    return api_error::conflict(type, name,
                               "pod " + name + " is being deleted, cannot be assigned to a host");
  const std::string bound = pod["spec"]["nodeName"].string_or("");
  if (!bound.empty())
    return api_error::conflict(type, name,
                               "pod " + name + " is already assigned to node \"" + bound + "\"");
  if (pod["spec"]["schedulingGates"].size() > 0)
    return api_error::conflict(type, name, "pod " + name + " has non-empty .spec.schedulingGates");
  pod.at("spec").set("nodeName", node);
  for (const json::Member& a : binding["metadata"]["annotations"].members())
    pod.at("metadata").at("annotations").set(a.first, a.second);
  Value conditions = Value::array();
  for (const Value& c : pod["status"]["conditions"].items())
    if (c["type"].string_view_or("") != "PodScheduled") conditions.push_back(c);
  conditions.push_back(Value::object({{"type", "PodScheduled"},
                                      {"status", "True"},
                                      {"lastProbeTime", nullptr},
                                      {"lastTransitionTime", now}}));
  pod.at("status").set("conditions", std::move(conditions));
  return pod;
}

}  // namespace rubato::kube::pod
