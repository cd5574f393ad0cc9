#include "operator/control/node_fit.h"

#include <string_view>

namespace rubato::control {

namespace {

constexpr std::string_view kMemoryPressure = "node.kubernetes.io/memory-pressure";

// Kubernetes marks unready and cordoned nodes by taints too: why_unschedulable() sees to that.
bool is_judged_elsewhere(const kube::Taint& taint) {
  for (const std::string_view condition : {"not-ready", "unreachable", "unschedulable"})
    if (taint.key == "node.kubernetes.io/" + std::string(condition)) return true;
  return false;
}

// Only such a pod may go to a node that is short of memory: Kubernetes lets it tolerate that. For
// this neither GPUs nor anything but cores and memory count.
bool asks_for_cores_or_memory(const kube::Pod& pod) {
  return kube::amount_of(pod.requests, "cpu") > 0 || kube::amount_of(pod.requests, "memory") > 0;
}

}  // namespace

bool admits(const kube::Pod& pod, const kube::Node& node) {
  const auto label = [&](std::string_view key) { return kube::find(node.meta.labels, key); };
  for (const auto& [key, value] : pod.node_selector) {
    if (label(key) != std::optional<std::string_view>(value)) return false;
  }
  for (const kube::Taint& taint : node.taints) {
    if (taint.effect == "PreferNoSchedule") continue;
    if (is_judged_elsewhere(taint)) continue;
    if (taint.key == kMemoryPressure && asks_for_cores_or_memory(pod)) continue;
    if (!kube::tolerates(pod.tolerations, taint)) return false;
  }
  return pod.affinity.admits(node.meta.labels, node.meta.name);
}

std::string why_unschedulable(const kube::Node& node, const Renewal* renewal,
                              const std::map<std::string, MonoTime>& suspects, MonoTime now,
                              const Config& config) {
  if (node.meta.deleting) return "being deleted";
  if (node.unschedulable) return "cordoned";
  return why_silent(node, renewal, suspects, now, config);
}

std::string why_silent(const kube::Node& node, const Renewal* renewal,
                       const std::map<std::string, MonoTime>& suspects, MonoTime now,
                       const Config& config) {
  if (node.ready != kube::Node::Ready::kTrue) return "not ready";
  if (renewal != nullptr) {
    const Duration limit =
        config.node_lease_limit > 0s ? config.node_lease_limit : renewal->duration;
    if (now - renewal->seen > limit) return "its Lease is not renewed";
  }
  const auto suspect = suspects.find(node.meta.name);
  if (suspect != suspects.end() && (renewal == nullptr || renewal->seen <= suspect->second)) {
    return "a worker fell silent on it and its Lease was not renewed since";
  }
  return "";
}

}  // namespace rubato::control
