// Caches: the informers an operator reads, in one place. snapshot() gives the World of the
// scheduler at one moment. Stores are thread-safe.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "operator/control/cluster_view.h"
#include "operator/control/memory.h"
#include "operator/control/objects.h"
#include "operator/control/placement_gate.h"
#include "operator/kube/informer.h"

#include <optional>
#include <string>

namespace rubato::control {

class Caches {
 public:
  Caches(kube::Client& client, Executor& executor, Metrics& metrics);
  void start();
  bool has_synced() const;
  // False when the deadline passed first.
  bool wait_for_sync(MonoTime deadline);

  // Pods as they are, or will be once the cache shows what was bound.
  World snapshot(const Memory& memory, const PlacementGate& gate,
                 const coordinator::Coordinator& coordinator, WallTime now) const;
  std::vector<std::shared_ptr<const kube::Pod>> pods_of(const std::string& job_uid) const;

  kube::Informer<JobObject> jobs;
  kube::Informer<kube::Pod> pods;
  kube::Informer<kube::Node> nodes;
  kube::Informer<QueueObject> queues;
  kube::Informer<PolicyObject> policies;
  kube::Informer<PriorityClassObject> priorities;
  kube::Informer<NodeLease> leases;
};

// The pod as the API server has it now, if it has it. A list: the operator's role has no need of
// the verb get otherwise.
Result<std::optional<json::Value>> live_pod(kube::Client& client, const kube::Key& key);

// Puts pods that are bound though the cache does not show it into what it shows (in the order of
// keys, as a store lists them).
void add_unseen(const std::vector<std::shared_ptr<const kube::Pod>>& unseen,
                std::vector<std::shared_ptr<const kube::Pod>>& pods);

}  // namespace rubato::control
