// Truth: one trace of jobs through the simulated operator (WholeCluster: the whole product in
// virtual time) and through the trace simulator (scheduler/sim). What the trace simulator is told,
// speeds of jobs and what changes cost, is measured in runs of the simulated operator of their own
// (calibrate), in which no trace is played.
//
// Both see the same: jobs of one GPU type, sizes, submissions, the policy with its parameters, the
// round interval and the pause between two growths. Work is counted in rounds of a training step:
// one each, and one more each time the tiny model's gradients overflow and the step is done again.
#pragma once

#include "scheduler/sim/simulate.h"
#include "tests/sim/scenario.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::sim {

constexpr const char* kTruthType = "model";

struct TruthJob {
  std::string name;
  Duration submit_at{};
  std::uint32_t micro_batches = 24;  // of a round
  std::uint64_t steps = 100;
  int gpus = 1;  // what a policy that is not elastic gives it
  int min = 1;   // and what an elastic one gives it
  int max = 1;
};

struct TruthTrace {
  int nodes = 2;
  int gpus_per_node = 4;
  WorkerTimes times = {.micro = 50ms};
  std::vector<TruthJob> jobs;
  int gpus() const { return nodes * gpus_per_node; }
};

// Poisson arrivals of jobs whose work is `load` times what the cluster can do until the last one
// comes. A pure function of the seed.
struct DrawTruth {
  std::uint64_t seed = 1;
  int jobs = 24;
  double load = 1.3;
  double mean_gpu_seconds = 150;  // of a job
};
TruthTrace draw_truth(const DrawTruth& wanted);
// GPU time of all jobs on one GPU each, over that of the cluster until the last one comes.
double offered_load(const TruthTrace& trace);

struct TruthPolicy {
  std::string name;
  std::map<std::string, double> parameters = {};
  int round_seconds = 10;
  int growth_pause_seconds = 10;
};

// What happened to one job in the simulated operator.
struct Lived {
  struct Held {
    MonoTime at{};
    int gpus = 0;  // of its allocation from then on
  };
  MonoTime submitted{};
  std::vector<Held> held;
  std::vector<MonoTime> steps;  // when each was committed
  struct Told {
    MonoTime at{};  // the first time
    double least = 0;
    double most = 0;  // rounds/s
  };
  std::map<int, Told> told;  // what its status said of its speed, by GPUs
  MonoTime finished{};       // complete in the API
  Duration jct() const { return finished - submitted; }
};
struct Played {
  std::string broken;  // what should not have happened; "": nothing
  std::vector<Lived> jobs;
  Duration length{};
};
Played play(const TruthTrace& trace, const TruthPolicy& policy, std::uint64_t seed = 1);

// What the trace simulator is told.
struct Figures {
  sched::sim::CostModel costs;
  sched::TimeMs observe_ms = 0;
  std::map<std::uint32_t, std::map<int, double>> speeds;  // rounds/s by micro-batches, by GPUs
};
Figures calibrate(const TruthTrace& trace);

double mean_jct_seconds(const Played& played);
double mean_jct_seconds(const sched::sim::SimResult& result);

// `on_plan`: as in SimOptions.
Result<sched::sim::SimResult> simulate(
    const TruthTrace& trace, const TruthPolicy& policy, const Figures& figures,
    const std::function<void(sched::TimeMs, const sched::Plan&)>& on_plan = {});

}  // namespace rubato::sim
