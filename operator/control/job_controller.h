// JobController: makes the world follow what a TrainingJob's spec and allocation say. Level
// triggered: reconcile reads everything, is right if called twice, late, or for no reason, and
// every write of it can be repeated.
//
//   finalizer → secret → pods of the allocation (created, bound) → what the coordinator should do
//   → pods that have left (deleted) → endings (suspend, delete, park, finish, fail) → status
#pragma once

#include "kube/controller.h"
#include "kube/events.h"
#include "operator/control/caches.h"
#include "operator/control/config.h"
#include "operator/control/memory.h"
#include "operator/control/placement_gate.h"
#include "operator/control/policy.h"
#include "operator/control/trust.h"
#include "operator/coordinator/coordinator.h"

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace rubato::control {

struct JobControllerDependencies {
  Executor& executor;
  kube::Client& client;
  Caches& caches;
  Memory& memory;
  PlacementGate& gate;
  coordinator::Coordinator& coordinator;
  kube::EventRecorder& events;
  const Config& config;
  const Installation& installation;
  const PolicyInForce& policy;
  const Trust& trust;
  std::function<void()> wake_scheduler;
  // An allocation of the job that was written, or not: nobody decides on it until that is known.
  std::function<void(const api::TrainingJob&, const api::Allocation&)> settle_later;
};

class JobController {
 public:
  explicit JobController(JobControllerDependencies dependencies);

  void set_leader(std::int64_t leader) { leader_ = leader; }
  kube::Outcome reconcile(const kube::Key& key);
  // From the job informer, of a standby: it keeps nothing of a job that is gone. A leader learns
  // that by reconcile().
  void on_job_change(const kube::Change<JobObject>& change);
  // From the pod informer: an allocated pod that vanishes is lost, at once.
  void on_pod_change(const kube::Change<kube::Pod>& change);

 private:
  void forget_gone(const kube::Key& key);
  void forget(const std::string& uid);

  JobControllerDependencies d_;
  std::int64_t leader_ = 0;
  std::mutex mutex_;
  std::map<kube::Key, std::string> uids_;  // of the jobs seen, to forget them by
};

}  // namespace rubato::control
