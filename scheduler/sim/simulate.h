// simulate: a trace, a cluster and a scheduler give results. Event-driven, deterministic, pure: no
// clock, no thread, no file. The time that decisions take is measured with a stopwatch that the
// caller passes, so that this library reads no clock.
//
//   const Result<SimResult> result = simulate(cluster, jobs, *scheduler, options);
//
// At each instant at which something happens (arrival, end of a start, a stall or a job, GPUs that
// come free, a speed observed, the round interval, a wake the scheduler asked for) all events of
// that instant are applied, then the scheduler is asked until it wants nothing more of GPUs that
// came free at once. Jobs that arrive at one instant are told in the order of their ids.
//
// Nodes fail where SimOptions::failures says how often: all pods on one are lost, and it is not
// ready until it is repaired. What the scheduler sees is what the operator would show it: jobs have
// lost pods, which the plan of that round writes off or replaces.
//
// What is not modelled: placement has no influence on speed, but by SimOptions::distances, or of a
// job with a TraceJob::training (trace.h); GPUs of a job are of one type, a pod has one GPU. A
// guest that comes or goes costs its host no stall; where its host loses a pod it stops.
#pragma once

#include "scheduler/sim/costs.h"
#include "scheduler/sim/decision_times.h"
#include "scheduler/sim/failures.h"
#include "scheduler/sim/scheduler.h"

#include <functional>

namespace rubato::sched::sim {

struct JobResult {
  JobId id;
  std::string queue;
  TimeMs submit_ms = 0;
  TimeMs start_ms = -1;   // GPUs given for the first time; -1: never
  TimeMs finish_ms = -1;  // -1: not finished
  std::optional<TimeMs> deadline_ms = {};
  Gpus request = 0;
  GpuMs gpu_ms = 0;           // held
  GpuMs training_gpu_ms = 0;  // of these, in which it trained
  GpuMs lost_gpu_ms = 0;      // of these, what a failure made it compute again
  TimeMs alone_ms = 0;        // on 1/N of the cluster: results.h
  std::int64_t preemptions = 0;
  std::int64_t restarts = 0;  // starts after the first
  std::int64_t rescales = 0;
  TimeMs jct_ms() const { return finish_ms - submit_ms; }
  bool is_on_time() const { return deadline_ms && finish_ms >= 0 && finish_ms <= *deadline_ms; }
  double rho() const {
    return alone_ms > 0 ? static_cast<double>(jct_ms()) / static_cast<double>(alone_ms) : 0;
  }
};

// What held from then on.
struct Sample {
  TimeMs at_ms = 0;
  Gpus held = 0;
  std::int64_t running = 0;  // jobs that hold GPUs
  std::int64_t waiting = 0;
};

struct Refused {
  JobId id;
  std::string why;
};

struct SimResult {
  std::string policy;
  std::string costs;
  Knows knows = Knows::kNothing;
  bool profiled = false;  // SimOptions
  SimCluster cluster;
  std::vector<JobResult> jobs;   // as in the trace, without those refused
  std::vector<Refused> refused;  // nodes, or their queue, never have so many GPUs for them
  std::vector<Sample> samples;   // in time
  TimeMs freed_ms = 0;           // when GPUs last came free, or were lost
  // Of nodes, until the last job ended; none: they do not fail.
  std::optional<std::int64_t> failures = {};
  std::int64_t rounds = 0;
  std::int64_t job_rounds = 0;  // jobs in the system, summed over rounds
  DecisionTimes decisions;      // one a round; empty without a stopwatch
};

// What policies that ask for durations or remaining work are told.
enum class Oracle {
  kTruth,
  // As in the operator: nothing before a speed of the job was observed, then the work over the
  // speed at its minimum as scheduler/perf infers it from what was observed.
  kObserved,
  kNothing,
};

struct SimOptions {
  CostModel costs = restart_costs();
  TimeMs round_ms = 60'000;  // longest time between rounds
  std::int64_t rounds_most = 100'000'000;
  // What is said of queues; of one that is not there nothing.
  std::map<std::string, Queue> queues = {};
  // A job's speed is known once it has trained for so long on one set of GPUs.
  TimeMs observe_ms = 10'000;
  TimeMs growth_pause_ms = 0;  // between two growths of one job, as in the operator
  // A job's speeds on all sizes are known when it comes, as of a model that was profiled before.
  bool profiled = false;
  // Rounds come at multiples of round_ms and at no other time, as in Pollux' simulator: what
  // happens in between waits. Jobs with a TraceJob::training can be played in no other way.
  bool in_lockstep = false;
  Oracle oracle = Oracle::kTruth;
  // How many times slower a job is whose pods are in two or more domains of that level, or on two
  // nodes ("node"), the largest that holds; empty: as fast. In proportion to what its GPUs
  // exchange each: so much holds for the mean of those jobs of which it is known, and for all
  // others.
  std::map<std::string, double> distances = {};
  // What jobs with a TraceJob::dataset read from. Policies that share it out do; under all others
  // each data set in use has an equal part of the cache, and each job its max-min share of the
  // rest. None: no job waits for data.
  std::optional<Storage> storage = {};
  // CPU and memory of each node, for jobs that say how sensitive they are. Policies that share them
  // out do; under all others each GPU has its part of its node. None: all have what they can use.
  std::optional<CpuMemory> of_node = {};
  // None: nodes do not fail. Not in lockstep.
  std::optional<NodeFailures> failures = {};
  std::function<std::int64_t()> stopwatch_ns;  // reads a clock; may be empty
  // Told before a plan is applied.
  std::function<void(TimeMs now, const Plan& plan)> on_plan;
  // Jobs finished; false ends the simulation with kCancelled. Asked every 16 rounds.
  std::function<bool(std::size_t finished, std::size_t of, TimeMs now)> on_progress;
};

// kInvalid: ids that are not unique, a job without work, one that takes longer than can be played
// (also because of what it has to share), more than SimOptions::rounds_most rounds, nodes that fail
// so often that jobs do not get on. kInternal: the scheduler's plan cannot be applied (an unknown
// job, GPUs that are not free, a size outside the job's bounds), it never comes to rest at one
// instant, or it changes the GPUs of a job so often that the job does nothing. `jobs` in any order.
Result<SimResult> simulate(const SimCluster& cluster, std::vector<TraceJob> jobs,
                           Scheduler& scheduler, const SimOptions& options);

}  // namespace rubato::sched::sim
