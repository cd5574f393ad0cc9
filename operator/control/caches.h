// Caches: the informers an operator reads, in one place. snapshot() gives the World of the
// scheduler at one moment. Stores are thread-safe.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/informer.h"
#include "operator/control/cluster_view.h"
#include "operator/control/installation.h"
#include "operator/control/memory.h"
#include "operator/control/objects.h"
#include "operator/control/placement_gate.h"
#include "operator/control/volumes.h"

#include <optional>
#include <string>

namespace rubato::control {

class Caches {
 public:
  // Jobs, queues and policies that the installation may see, and the claims of its namespaces; all
  // else of the whole cluster.
  Caches(kube::Client& client, Executor& executor, Metrics& metrics,
         const Installation& installation);
  void start();
  // No handler runs when it returns, nor later.
  void stop();
  bool has_synced() const;
  // False when the deadline passed first.
  bool wait_for_sync(MonoTime deadline);

  // Pods as they are, or will be once the cache shows what was bound.
  World snapshot(const Memory& memory, const PlacementGate& gate,
                 const coordinator::Coordinator& coordinator, MonoTime now, WallTime wall) const;
  StorageView storage() const;  // as the stores show it at each call
  // Jobs whose pods name the claim, or whose pod it was made for.
  std::vector<kube::Key> jobs_using(const kube::Claim& claim) const;
  std::vector<kube::Key> jobs_using(const kube::Key& claim) const;
  std::vector<std::shared_ptr<const kube::Pod>> pods_of(const std::string& job_uid) const;

  template <class Visit>
  void for_each(Visit visit) {
    visit_all(*this, visit);
  }
  template <class Visit>
  void for_each(Visit visit) const {
    visit_all(*this, visit);
  }

  kube::Informer<JobObject> jobs;
  kube::Informer<kube::Pod> pods;
  kube::Informer<kube::Node> nodes;
  kube::Informer<QueueObject> queues;
  kube::Informer<PolicyObject> policies;
  kube::Informer<ProfileObject> profiles;
  kube::Informer<PriorityClassObject> priorities;
  kube::Informer<NodeLease> leases;
  kube::Informer<kube::Claim> claims;
  kube::Informer<kube::Volume> volumes;
  kube::Informer<kube::StorageClass> storage_classes;

 private:
  template <class Self, class Visit>
  static void visit_all(Self& self, Visit& visit) {
    visit(self.jobs);
    visit(self.pods);
    visit(self.nodes);
    visit(self.queues);
    visit(self.policies);
    visit(self.profiles);
    visit(self.priorities);
    visit(self.leases);
    visit(self.claims);
    visit(self.volumes);
    visit(self.storage_classes);
  }
};

// The pod as the API server has it now, if it has it. A list: the operator's role has no need of
// the verb get otherwise.
Result<std::optional<json::Value>> live_pod(kube::Client& client, const kube::Key& key);

// Puts pods that are bound though the cache does not show it into what it shows (in the order of
// keys, as a store lists them).
void add_unseen(const std::vector<std::shared_ptr<const kube::Pod>>& unseen,
                std::vector<std::shared_ptr<const kube::Pod>>& pods);

}  // namespace rubato::control
