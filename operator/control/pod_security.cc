#include "operator/control/pod_security.h"

namespace rubato::control {

namespace {

using json::Value;

constexpr const char* kTmpVolume = "rubato-tmp";
constexpr const char* kTmp = "/tmp";

void set_if_absent(Value& object, const char* key, Value value) {
  if (object[key].is_null()) object.set(key, std::move(value));
}

// Does the pod, or any of its containers, ask for root or say itself what may run?
bool wants_root(const Value& pod_spec) {
  const auto asks = [](const Value& context) { return context["runAsUser"].int_or(-1) == 0; };
  if (asks(pod_spec["securityContext"])) return true;
  for (const char* list : {"initContainers", "containers"}) {
    for (const Value& container : pod_spec[list].items()) {
      const Value& context = container["securityContext"];
      if (asks(context) && context["runAsNonRoot"].is_null()) return true;
    }
  }
  return false;
}

// The API server refuses these together with "no privilege escalation".
bool needs_escalation(const Value& context) {
  for (const Value& added : context["capabilities"]["add"].items()) {
    const std::string_view name = added.string_view_or("");
    if (name == "SYS_ADMIN" || name == "CAP_SYS_ADMIN") return true;
  }
  return false;
}

void secure_container(Value& container) {
  const Value before = container["securityContext"];  // a copy: `container` is written below
  if (before["privileged"].bool_or(false)) return;
  Value& context = container.at("securityContext");
  if (!needs_escalation(before)) set_if_absent(context, "allowPrivilegeEscalation", false);
  Value& capabilities = context.at("capabilities");
  set_if_absent(capabilities, "drop", Value::array({"ALL"}));
}

bool mounts_tmp(const Value& container) {
  for (const Value& mount : container["volumeMounts"].items()) {
    const std::string_view path = mount["mountPath"].string_view_or("");
    if (path == kTmp || path == "/tmp/") return true;
  }
  return false;
}

bool has_volume(const Value& pod_spec, const char* name) {
  for (const Value& volume : pod_spec["volumes"].items()) {
    if (volume["name"].string_view_or("") == name) return true;
  }
  return false;
}

void make_root_read_only(Value& pod_spec, Value& container) {
  if (container["securityContext"]["privileged"].bool_or(false)) return;
  Value& context = container.at("securityContext");
  set_if_absent(context, "readOnlyRootFilesystem", true);
  if (!context["readOnlyRootFilesystem"].bool_or(false) || mounts_tmp(container)) return;
  if (!has_volume(pod_spec, kTmpVolume)) {
    pod_spec.at("volumes").push_back(
        Value::object({{"name", kTmpVolume}, {"emptyDir", Value::object()}}));
  }
  container.at("volumeMounts")
      .push_back(Value::object({{"name", kTmpVolume}, {"mountPath", kTmp}}));
}

}  // namespace

void apply_pod_security(Value& pod_spec, std::size_t worker) {
  const bool root = wants_root(pod_spec);
  Value& context = pod_spec.at("securityContext");
  if (!root) set_if_absent(context, "runAsNonRoot", true);
  set_if_absent(context, "fsGroup", kWorkerGroup);
  // Walking all of a large volume at each start of a pod would take minutes.
  set_if_absent(context, "fsGroupChangePolicy", "OnRootMismatch");
  set_if_absent(context, "seccompProfile", Value::object({{"type", "RuntimeDefault"}}));
  for (const char* list : {"initContainers", "containers"}) {
    if (pod_spec[list].size() == 0) continue;
    for (Value& container : pod_spec.at(list).mutable_items()) secure_container(container);
  }
  if (worker >= pod_spec["containers"].size()) return;
  Value container = pod_spec["containers"][worker];
  make_root_read_only(pod_spec, container);
  pod_spec.at("containers").at(worker) = std::move(container);
}

}  // namespace rubato::control
