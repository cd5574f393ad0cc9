// Engine: one simulation. Private to this folder; made, run once, thrown away. ClusterState is
// kept for the scheduler and changed in place: an event touches its own job and nodes, a round
// copies nothing.
//
// Work is counted in quanta, integers: 10^9 a unit; more for a slow job, also once it is slowed
// down by what it has to share, fewer for one of so much work that the whole would be beyond
// 4·10^18. A speed is quanta a millisecond, rounded once; a job ends at the first millisecond at
// which nothing is left.
#pragma once

#include "scheduler/sim/adaptive_run.h"
#include "scheduler/sim/simulate.h"

#include <limits>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rubato::sched::sim {

constexpr double kQuantaMost = 4e18;
constexpr double kRateLeast = 1e5;  // quanta/ms: a speed is rounded by less than a part in 10^5
// So that times and GPU times stay integers whatever happens: of one job, and of all.
constexpr double kJobSecondsMost = 1e10;
constexpr double kGpuSecondsMost = 1e15;

class Engine {
 public:
  Engine(const SimCluster& cluster, std::vector<TraceJob> jobs, Scheduler& scheduler,
         const SimOptions& options);
  Result<SimResult> run();

 private:
  // kParked: those that train are fewer than its minimum, and stand still.
  enum class Phase { kAbsent, kWaiting, kStarting, kStalled, kTraining, kParked, kDone };
  enum class EventKind { kReady, kJoin, kFinish, kObserve, kCooled, kReleased, kGivesUp };
  struct Event {
    TimeMs at_ms = 0;
    std::uint64_t order = 0;  // of making: ties
    EventKind kind = EventKind::kReady;
    std::uint32_t job = 0;
    std::uint32_t version = 0;  // stale unless it is the job's
    std::size_t node = 0;       // kReleased
    Gpus gpus = 0;              // kReleased
    std::int64_t ordinal = -1;  // kReleased
    bool operator<(const Event& other) const {
      return at_ms != other.at_ms ? at_ms > other.at_ms : order > other.order;
    }
  };
  // A node fails, or, where it has, is repaired.
  struct NodeEvent {
    TimeMs at_ms = 0;
    std::size_t node = 0;
    bool operator<(const NodeEvent& other) const {
      return at_ms != other.at_ms ? at_ms > other.at_ms : node > other.node;
    }
  };
  // A job of the trace, while it is there.
  struct Run {
    Phase phase = Phase::kAbsent;
    std::uint32_t version = 0;
    std::size_t position = 0;  // in state_.jobs
    std::int64_t total = 0;    // quanta
    std::int64_t left = 0;     // quanta
    double quanta_per_unit = 0;
    std::int64_t rate = 0;  // quanta/ms while training
    TimeMs since_ms = 0;    // `left` and the GPU times are of this instant
    TimeMs until_ms = 0;    // end of a start or stall
    TimeMs join_ms = -1;    // when newcomers are ready; -1: there are none
    Gpus held = 0;          // without leavers
    Gpus training = 0;      // of those held: without newcomers
    std::int64_t next_ordinal = 0;
    std::size_t type = 0;    // of types_, while held > 0
    double seen_before = 0;  // integral of jobs in the system, at its arrival
    TimeMs cool_ms = -1;     // may grow again from then on
    TimeMs changed_ms = -1;  // the last change of its GPUs: those of one instant count once
    std::optional<AdaptiveRun> adaptive = {};
    std::int64_t told = -1;  // version of its goodput that the policy knows
    TimeMs trained_to_ms = -1;
    std::optional<std::size_t> host;  // on whose GPUs it is
    std::vector<std::size_t> guests;  // on its
    double shares_part = 1;           // of its speed, for what it has of storage, CPU and memory
    // Of kParts of its work, the fewest that were left at a change of its GPUs.
    std::int64_t part_left = std::numeric_limits<std::int64_t>::max();
    std::int64_t changes = 0;     // of its GPUs since then
    std::int64_t saved_left = 0;  // quanta, at its last checkpoint; since then it has trained for:
    TimeMs unsaved_ms = 0;
    GpuMs unsaved_gpu_ms = 0;
    TimeMs gives_up_ms = -1;  // has fewer than its minimum; until then it keeps them
  };

  // engine.cc
  Status check_jobs() const;
  void refuse_what_never_fits();
  TimeMs next_instant() const;
  TimeMs next_round() const;
  void arrive(std::size_t index);
  Status handle(const Event& event);
  Status round();
  void refresh_history();
  void sample();
  SimResult collect();

  // engine_adaptive.cc
  void choose_batches();
  void tell_goodput();
  void train_on(std::size_t index);
  void begin_windows();
  TimeMs next_in_lockstep() const { return (now_ / options_.round_ms + 1) * options_.round_ms; }

  // engine_failures.cc
  void begin_failures();
  Status handle_nodes();
  Error without_progress(const std::string& what) const;
  void fail(std::size_t node);
  void repair(std::size_t node);
  void lose_node(std::size_t index, const NodeId& node);
  void lose_pods(std::size_t index, const NodeId& node);
  void go_on_without(std::size_t index, Gpus members_before);
  void begin_again(std::size_t index);
  void go_back(std::size_t index);
  void give_up(std::size_t index);
  void save(std::size_t index);
  void count_unsaved(Run& run, TimeMs passed) const;

  // engine_places.cc
  void put_into_domains();
  void find_mean_traffic();
  double part_at_distance(std::size_t index) const;

  // engine_sharing.cc
  double part_of_speed(std::size_t index) const;
  Status become_guest(std::size_t index, const Action& action);
  void leave_host(std::size_t index);
  std::vector<bool> hand_over_to_guests(std::size_t index);
  void change_speed(std::size_t index);
  void observe_sharing(std::size_t index);
  bool shares(const Run& run) const { return run.host.has_value() || !run.guests.empty(); }

  // engine_shares.cc
  void share_out(const Plan& plan);
  std::vector<GpusOnNodes> places_held() const;

  // engine_told.cc
  void tell_speeds(const TraceJob& trace, Job& job) const;
  void observe(std::size_t index);
  void tell_times(std::size_t index);

  // engine_jobs.cc
  Status apply(const Plan& plan);
  Status apply(const Action& action);
  Status remove_pods(std::size_t index, const std::vector<std::int64_t>& ordinals);
  Status add_pods(std::size_t index, const std::vector<Placement>& add);
  void change_pace(std::size_t index, Gpus removed, Gpus added);
  Status count_change(std::size_t index);
  void stall(Run& run, TimeMs stall_ms) const;
  void start(std::size_t index);
  void stop(std::size_t index);
  void wait_again(std::size_t index);
  double speed_of(const TraceJob& job, const std::string& type, Gpus gpus) const;
  TimeMs end_of(const Run& run) const;
  void train(std::size_t index);
  void advance(std::size_t index);
  Status finish(std::size_t index);
  void release(std::size_t index, const Held& held);
  void push(EventKind kind, std::size_t index, TimeMs at_ms);
  bool hears_of_speeds() const {
    return about_.uses_throughput ||
           (options_.oracle == Oracle::kObserved && about_.knows != Knows::kNothing);
  }
  Knows knows() const {
    return options_.oracle == Oracle::kNothing ? Knows::kNothing : about_.knows;
  }
  Job& job_of(std::size_t index) { return state_.jobs[runs_[index].position]; }

  const SimCluster cluster_;
  std::vector<TraceJob> trace_;
  Scheduler& scheduler_;
  const SimOptions& options_;
  const Descriptor& about_;

  TimeMs now_ = 0;
  ClusterState state_;
  std::vector<Run> runs_;                    // as trace_
  std::vector<std::uint32_t> index_of_job_;  // position in state_.jobs -> index in trace_
  std::unordered_map<JobId, std::size_t> index_of_;
  std::unordered_map<NodeId, std::size_t> node_of_;
  std::map<std::string, std::vector<ThroughputPoint>> observed_;  // by profile
  std::vector<std::string> types_;
  std::vector<std::size_t> type_of_node_;
  std::map<const Application*, StepTimes> steps_;
  double mean_traffic_ = 0;  // bytes/s of a GPU; 0: nothing is known
  std::priority_queue<Event> events_;
  // Of nodes; as state_.nodes: when each fails, and the GPUs of pods that were lost on it.
  std::priority_queue<NodeEvent> node_events_;
  std::vector<Uptimes> uptimes_;
  std::vector<Gpus> lost_gpus_;
  std::size_t nodes_away_ = 0;
  std::uint64_t made_ = 0;
  std::size_t arrived_ = 0;
  std::size_t finished_ = 0;
  std::int64_t running_ = 0;
  Gpus held_ = 0;               // leavers included
  bool changed_ = false;        // since the last round
  bool freed_at_once_ = false;  // by the plan just applied
  TimeMs last_round_ms_ = 0;
  bool last_plan_was_empty_ = false;
  std::int64_t rounds_without_progress_ = 0;
  std::optional<TimeMs> wake_ms_;
  double in_system_ = 0;  // integral of the number of jobs over time, in jobs · ms
  TimeMs in_system_at_ms_ = 0;
  double held_gpu_ms_ = 0;  // integral of held_ over time, until in_system_at_ms_
  SimResult result_;
};

}  // namespace rubato::sched::sim
