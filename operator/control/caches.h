// Caches: the informers an operator reads, in one place. snapshot() gives the World of the
// scheduler at one moment. Stores are thread-safe.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "operator/control/cluster_view.h"
#include "operator/control/memory.h"
#include "operator/control/objects.h"
#include "operator/kube/informer.h"

#include <string>

namespace rubato::control {

class Caches {
 public:
  Caches(kube::Client& client, Executor& executor, Metrics& metrics);
  void start();
  bool has_synced() const;
  // False when the deadline passed first.
  bool wait_for_sync(MonoTime deadline);

  World snapshot(const Memory& memory, const coordinator::Coordinator& coordinator,
                 WallTime now) const;
  std::vector<std::shared_ptr<const kube::Pod>> pods_of(const std::string& job_uid) const;

  kube::Informer<JobObject> jobs;
  kube::Informer<kube::Pod> pods;
  kube::Informer<kube::Node> nodes;
  kube::Informer<QueueObject> queues;
  kube::Informer<PolicyObject> policies;
  kube::Informer<PriorityClassObject> priorities;
  kube::Informer<NodeLease> leases;
};

}  // namespace rubato::control
