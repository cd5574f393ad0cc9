// Nodes that are about to go: they say so, their pods are told to end, and their power goes.
#include "operator/control/leaving_nodes.h"
#include "tests/sim/whole_cluster.h"

#include <utility>
#include <vector>

namespace rubato::sim {

using json::Value;

namespace {
constexpr const char* kSpotTaint = "aws-node-termination-handler/spot-itn";
constexpr Duration kRebooted = 2s;
constexpr Duration kAdded = 2s;  // another node, after the one that was reclaimed
}  // namespace

void WholeCluster::take_away(const Fault& fault, ModelNode& node) {
  story_.say("FAULT {} is about to go ({}), its pods are told to end in {:.1f} s", node.name(),
             name_of(fault.kind), seconds(fault.spell));
  announce(node.name(), fault.kind);
  later(fault.spell, [this, name = node.name()] { tell_pods_to_end(name); });
  later(fault.spell + kDrained, [this, &node, kind = fault.kind] {
    // Something else may have ended it meanwhile, and what comes after that is its matter.
    if (over_ || !node.is_up() || !witness_.nodes().contains(node.name())) return;
    trouble_everywhere();
    if (kind == FaultKind::kMaintained)
      end_maintained(node);
    else
      end_reclaimed(node);
  });
}

void WholeCluster::announce(const std::string& node, FaultKind kind) {
  const Value since =
      Value::object({{std::string(control::kMaintenanceAt), "2001-01-01T00:00:00Z"}});
  const Value taint = Value::object({{"key", kSpotTaint}, {"effect", "NoSchedule"}});
  const Value patch =
      kind == FaultKind::kMaintained
          ? Value::object({{"metadata", Value::object({{"annotations", since}})}})
          : Value::object({{"spec", Value::object({{"taints", Value::array({taint})}})}});
  (void)server_->patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge, patch);
}

void WholeCluster::take_back(const std::string& node) {
  const Value none = Value::object({{std::string(control::kMaintenanceAt), nullptr}});
  (void)server_->patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge,
                       Value::object({{"metadata", Value::object({{"annotations", none}})},
                                      {"spec", Value::object({{"taints", nullptr}})}}));
}

// As a drain does, or a kubelet whose machine shuts down.
void WholeCluster::tell_pods_to_end(const std::string& node) {
  std::vector<std::pair<kube::Key, std::string>> those;
  for (const auto& [key, pod] : witness_.pods())
    if (pod.node == node && !pod.deleting && !pod.finished)
      those.emplace_back(kube::Key{pod.ns, pod.name}, pod.uid);
  if (over_) return;
  story_.say("{} pods on {} are told to end", those.size(), node);
  trouble_everywhere();
  for (const auto& [key, uid] : those) (void)server_->remove(kube::types::kPod, key, {.uid = uid});
}

void WholeCluster::end_maintained(ModelNode& node) {
  story_.say("{} is maintained", node.name());
  node.power_off();
  node.checkpoints().lose_power(node.name());
  later(kRebooted, [this, &node] {
    if (over_ || !witness_.nodes().contains(node.name())) return;
    story_.say("{} comes back", node.name());
    trouble_everywhere();
    take_back(node.name());
    if (!node.is_up()) node.power_on();
  });
}

void WholeCluster::end_reclaimed(ModelNode& node) {
  story_.say("{} is reclaimed", node.name());
  node.power_off();
  node.checkpoints().lose_power(node.name());
  (void)server_->remove(kube::types::kNode, {"", node.name()});
  (void)server_->remove(kube::types::kLease, {"kube-node-lease", node.name()});
  NodePlan plan = node.plan();
  plan.name += "r";
  later(kAdded, [this, plan] {
    if (over_) return;
    story_.say("node {} is added", plan.name);
    trouble_everywhere();
    add_node(plan);
  });
}

}  // namespace rubato::sim
