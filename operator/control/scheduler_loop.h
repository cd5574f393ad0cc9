// SchedulerLoop: capture → make_plan → apply, one round at a time on one task. A round starts when
// something changed (wake) or `round_interval` passed. Before a round it waits until the caches
// have seen every allocation that it wrote itself.
#pragma once

#include "operator/control/caches.h"
#include "operator/control/config.h"
#include "operator/control/memory.h"
#include "operator/kube/events.h"
#include "scheduler/plan.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace rubato::control {

class SchedulerLoop {
 public:
  struct Dependencies {
    Executor& executor;
    kube::Client& client;
    Metrics& metrics;
    Caches& caches;
    Memory& memory;
    coordinator::Coordinator& coordinator;
    kube::EventRecorder& events;
    const Config& config;
    // A job got an allocation or another verdict: reconcile it.
    std::function<void(const kube::Key&)> enqueue;
  };
  explicit SchedulerLoop(Dependencies dependencies);

  // `leader`: leaseTransitions, written into every allocation.
  void start(std::int64_t leader);
  void stop();
  // Something changed; thread-safe, cheap.
  void wake();

 private:
  void run(std::stop_token stop);
  void round();
  void apply(const sched::Action& action, const World& world);
  void tell_verdicts(const World& world, sched::Plan& plan);
  bool has_seen_own_writes() const;

  Dependencies d_;
  std::int64_t leader_ = 0;
  std::mutex mutex_;
  std::unique_ptr<Condition> woken_;
  bool wake_ = false;
  std::map<kube::Key, std::int64_t> written_;  // newest epoch written per job; the loop's task only
  std::map<sched::JobId, std::string> told_;   // last verdict told; the loop's task only
  Task task_;
};

}  // namespace rubato::control
