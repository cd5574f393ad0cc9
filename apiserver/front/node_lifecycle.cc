#include "apiserver/front/node_lifecycle.h"

#include <map>
#include <set>

namespace rubato::apiserver {

namespace {

using json::Value;

struct Renewal {
  WallTime at{};
  Duration duration{};
};

Result<std::map<std::string, Renewal>> read_leases(kube::Client& client) {
  TRY(const kube::ObjectList list, client.list(kube::types::kLease, "kube-node-lease", {}));
  std::map<std::string, Renewal> renewals;
  for (const Value& lease : list.items) {
    const auto at = parse_rfc3339(lease["spec"]["renewTime"].string_view_or(""));
    if (!at.ok()) continue;
    renewals[kube::name_of(lease)] = {
        *at, std::chrono::seconds(lease["spec"]["leaseDurationSeconds"].int_or(40))};
  }
  return renewals;
}

bool is_node_ready(const Value& node) {
  for (const Value& condition : node["status"]["conditions"].items()) {
    if (condition["type"].string_view_or("") == "Ready") {
      return condition["status"].string_view_or("") == "True";
    }
  }
  return false;
}

Status mark_unknown(kube::Client& client, const Value& node, WallTime now) {
  Value conditions = node["status"]["conditions"];
  for (Value& condition : conditions.mutable_items()) {
    if (condition["type"].string_view_or("") != "Ready") continue;
    condition.set("status", "Unknown");
    condition.set("reason", "NodeStatusUnknown");
    condition.set("message", "the node's Lease is not renewed");
    condition.set("lastTransitionTime", to_rfc3339(now));
  }
  const auto written = client.patch(
      kube::types::kNode, kube::key_of(node), kube::PatchType::kMerge,
      Value::object({{"status", Value::object({{"conditions", std::move(conditions)}})}}),
      {.subresource = "status"});
  return written.ok() ? ok() : Status(written.error());
}

}  // namespace

Result<int> tend_nodes(kube::Client& client, const Clock& clock) {
  const WallTime now = clock.wall();
  int changed = 0;
  // Before the nodes: one that a pod is bound to was there by then, and what is not there now is
  // gone.
  TRY(const kube::ObjectList pods, client.list(kube::types::kPod, "", {}));
  TRY(const auto renewals, read_leases(client));
  TRY(const kube::ObjectList nodes, client.list(kube::types::kNode, "", {}));
  std::set<std::string> names;
  for (const Value& node : nodes.items) {
    names.insert(kube::name_of(node));
    const auto renewal = renewals.find(kube::name_of(node));
    if (renewal == renewals.end() || !is_node_ready(node)) continue;
    if (now - renewal->second.at <= renewal->second.duration) continue;
    TRY_OK(mark_unknown(client, node, now));
    ++changed;
  }
  for (const Value& pod : pods.items) {
    const std::string node = pod["spec"]["nodeName"].string_or("");
    if (node.empty() || names.contains(node)) continue;
    TRY_OK(client.remove(kube::types::kPod, kube::key_of(pod),
                         {.uid = kube::uid_of(pod), .grace_period_seconds = 0}));
    ++changed;
  }
  return changed;
}

}  // namespace rubato::apiserver
