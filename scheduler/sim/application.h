// What was measured of one application whose batch may change while it trains: how long a pass
// takes by placement and local batch, and how its gradient and its progress went at each batch.
// The hidden truth of the jobs that train it.
//
// Mechanics and interpolation are those of the simulator of Pollux (OSDI'21, artifact
// `osdi21-artifact`): progress is counted in steps at the first batch, a step of a larger batch
// counts gain() (perf/goodput.h), and an epoch ends at the least progress that any batch had there.
#pragma once

#include "scheduler/perf/goodput.h"

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace rubato::sched::sim {

struct MeasuredStep {
  double local_batch = 0;
  double step_s = 0;  // one pass with its reduction
  double sync_s = 0;  // of these, waiting for the reduction
};

struct SpreadStep {
  Spread spread;
  MeasuredStep step;
};

struct MeasuredEpoch {
  double progress = 0;  // from the start to its end
  GradientNoise noise;
};

// GPUs of each node that a job is on.
using GpusByNode = std::vector<Gpus>;

struct Application {
  std::string name;
  BatchLimits limits;
  std::map<GpusByNode, std::vector<MeasuredStep>> placements;  // as normal_form(); by local batch
  // Means of these, and what was measured on more nodes.
  std::vector<SpreadStep> spreads;
  std::map<std::int64_t, std::vector<MeasuredEpoch>> epochs;  // by batch; as many of each

  std::size_t count_epochs() const;
  double progress_after(std::size_t epochs) const;
  // Linear between two batches that were measured.
  GradientNoise noise(double batch, std::size_t epoch) const;
  Gpus gpus_most() const;  // on which its largest batch can be split
};

// Of all rotations the least: nodes in a ring are alike.
GpusByNode normal_form(GpusByNode placement);

// The time of a pass, remembered. Linear in the local batch where the placement was measured; else
// linear in (nodes, GPUs, local batch), within the Delaunay simplex of the measured spreads around
// it, which a small linear program finds; outside of all of them the nearest spread.
class StepTimes {
 public:
  explicit StepTimes(const Application& application) : of_(application) {}  // outlives it
  MeasuredStep at(const GpusByNode& placement, double local_batch);
  const Application& application() const { return of_; }

 private:
  MeasuredStep between_spreads(Spread spread, double local_batch) const;

  const Application& of_;
  std::map<std::tuple<std::int64_t, Gpus, double>, MeasuredStep> known_;
};

// How a batch is split.
struct BatchSplit {
  double local_batch = 1;
  std::int64_t accumulated = 0;  // passes before the last one
};

// As few passes as fit; on one GPU two for more than the first batch, for its noise to be measured.
BatchSplit split_of(double batch, Gpus gpus, const BatchLimits& limits);

// Progress a second.
double goodput_of(StepTimes& steps, const GpusByNode& placement, BatchSplit split,
                  std::size_t epoch);

// The fewest nodes of so many GPUs each.
GpusByNode packed(Gpus gpus, Gpus per_node);

// Progress a second, the mean of all its epochs, on so many GPUs packed on nodes: at that batch, or
// with 0 at the one that is best in each epoch.
double mean_goodput(StepTimes& steps, Gpus gpus, Gpus per_node, double batch);

}  // namespace rubato::sched::sim
