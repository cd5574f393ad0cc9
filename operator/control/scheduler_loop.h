// SchedulerLoop: capture → make_plan → apply, one round at a time on one task. A round starts when
// something changed (wake), the policy's interval passed, or an instant has come that the policy
// named (Policy::next_wake), or from which on a node is left (next_leaving); while pods leave it
// waits a little for the GPUs of all (AwaitedRoom). It reads the SchedulingPolicy first, and writes
// the status of queues and policies, and ThroughputProfiles, last. Before a round it waits until
// the caches have seen every allocation that it wrote itself, before its first one those that
// earlier leaders wrote, and until none of them can write any more: the coordinator has taken the
// memberships over of jobs that hold GPUs, and allocations of others that had some are written
// anew.
#pragma once

#include "kube/events.h"
#include "operator/control/awaited_room.h"
#include "operator/control/caches.h"
#include "operator/control/config.h"
#include "operator/control/memory.h"
#include "operator/control/placement_gate.h"
#include "operator/control/plan_check.h"
#include "operator/control/policy.h"
#include "operator/control/start_forecast.h"
#include "operator/control/throughput_profiles.h"
#include "scheduler/snapshot/snapshot.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::control {

// Hears of every round: what was decided on, and the plan. On the scheduler's task, which waits.
using RoundRecorder = std::function<void(const sched::Snapshot&, const sched::Plan&)>;

class SchedulerLoop {
 public:
  struct Dependencies {
    Executor& executor;
    kube::Client& client;
    Metrics& metrics;
    Caches& caches;
    Memory& memory;
    PlacementGate& gate;
    coordinator::Coordinator& coordinator;
    kube::EventRecorder& events;
    const Config& config;
    const Installation& installation;
    PolicyInForce& policy;  // set by each round
    // A job got an allocation or another verdict: reconcile it.
    std::function<void(const kube::Key&)> enqueue;
    RoundRecorder record;  // none: nobody listens
  };
  explicit SchedulerLoop(Dependencies dependencies);

  // `leader`: leaseTransitions, written into every allocation.
  void start(std::int64_t leader);
  void stop();
  // Something changed; thread-safe, cheap.
  void wake();
  // An allocation that the job controller wrote, or did not: the answer was lost. The decision is
  // open in the gate, and is ended here. Thread-safe.
  void settle_later(const api::TrainingJob& job, const api::Allocation& tried);

 private:
  struct Unsettled {
    api::TrainingJob job;  // what it was decided on
    api::Allocation tried;
    std::optional<sched::ActionKind> kind;  // none: not ours to tell of
  };

  struct Written {
    kube::Key job;
    std::int64_t epoch = 0;  // the newest
    std::string version;     // resourceVersion of the job with it
  };

  void run(const std::stop_token& stop);
  void round();
  void look_at_maintenances(const World& world);
  void load_policy(const World& world);
  void apply_all(const std::vector<sched::Action>& actions, const sched::ClusterState& state,
                 const World& world);
  bool may_have_claims(const sched::Action& action, const World& world,
                       std::set<kube::Key>& claimed);
  Result<api::TrainingJob> begin(const JobObject& object);
  bool apply(const sched::Action& action, const World& world);  // false: not, for now
  std::int64_t named_ordinal(const api::TrainingJob& job) const;
  api::Allocation after(const api::TrainingJob& job, const sched::Action& action) const;
  void tell_verdicts(const sched::Snapshot& decided_on, const sched::Plan& plan);
  bool has_seen_own_writes() const;
  bool is_absent(const std::string& uid, const kube::Key& key) const;
  bool settle();
  bool settle(const kube::Key& key, const Unsettled& doubt);
  bool take_stock();
  std::map<kube::Key, kube::Pod> note_bound(const std::vector<json::Value>& pods);
  void note_broken_promises(const api::TrainingJob& job,
                            const std::map<kube::Key, kube::Pod>& there);
  bool has_taken_over();
  bool may_get_late_write(const api::TrainingJob& job) const;
  bool shut_out_earlier(const std::vector<api::TrainingJob>& jobs);
  bool shut_out_earlier(const api::TrainingJob& job);
  Result<Written> shut_out(const api::TrainingJob& job);
  Result<std::vector<json::Value>> list_jobs(const std::set<std::string>& denied);
  Result<std::vector<json::Value>> list_all(const kube::ResourceType& type, const std::string& ns,
                                            const std::string& label_selector);
  bool shows_bound(const kube::Pod& pod) const;  // the cache
  void look_after_bindings();
  void tell(const api::TrainingJob& job, const api::Allocation& next, sched::ActionKind kind);
  void wait_after_refusal(const api::TrainingJob& job, const api::Allocation& next,
                          const Error& error);

  Dependencies d_;
  AwaitedRoom awaited_room_;
  PlanCheck plan_check_;
  StartForecast start_forecast_;
  ProfileWriter profile_writer_;
  std::int64_t leader_ = 0;
  std::mutex mutex_;
  std::unique_ptr<Condition> woken_;
  bool wake_ = false;
  // That the policy named, or that a node is left from; the loop's task only.
  MonoTime wake_at_ = MonoTime::max();
  bool loaded_policy_ = false;  // by this leader; the loop's task only
  std::string refused_;         // why the SchedulingPolicy is not in force; the loop's task only
  // By node, why its maintenance cannot be read; the loop's task only.
  std::map<std::string, std::string> unreadable_;
  std::map<std::string, Written> written_;  // by job uid; the loop's task only
  // Decisions whose answer was lost: each stands or does not, and until that is known nothing else
  // is decided, or a GPU might be given twice. The loop's task only.
  std::map<kube::Key, Unsettled> unsettled_;
  std::map<kube::Key, Unsettled> handed_;  // by the job controller, on the way there; mutex_
  bool took_stock_ = false;                // the loop's task only
  // Namespaces whose jobs could not be listed since stock was taken: no round looks at them. The
  // loop's task only.
  std::set<std::string> left_alone_;
  // By uid: jobs that hold GPUs, and that earlier leaders may still write to. The loop's task only.
  std::map<std::string, kube::Key> behind_;
  MonoTime takeovers_until_{};  // patience of it
  Task task_;
};

}  // namespace rubato::control
