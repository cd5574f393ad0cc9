// One job that trains an Application (application.h): its batch, chosen anew at each epoch and each
// round from what was observed of the job itself; its progress; and the goodput that this lets a
// policy expect. Private to this folder.
//
// As in Pollux' simulator: what is observed is exact, and each new (nodes, GPUs, local batch) makes
// the model of its steps be fitted anew; an epoch takes whole seconds.
#pragma once

#include "scheduler/perf/fit.h"
#include "scheduler/sim/application.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::sched::sim {

class AdaptiveRun {
 public:
  // `batch`: what it stays at; 0: it adapts. `steps` outlives it.
  AdaptiveRun(StepTimes& steps, double batch) : steps_(&steps), batch_(batch) {}

  // Trains so long on these GPUs; the seconds after which it is done, if it is.
  std::optional<double> train(const GpusByNode& placement, double seconds);
  double progress() const { return progress_; }

  // On each number of GPUs up to twice the most that was observed, and to `most`: on one node, as
  // far as that has room, and on several. Empty before anything was observed.
  std::vector<GoodputPoint> goodput(const std::string& gpu_type, Gpus per_node, Gpus most) const;
  // Another number once goodput() says something else.
  std::int64_t version() const { return version_; }

 private:
  BatchSplit split_on(Spread spread) const;
  void observe(Spread spread, double local_batch, const MeasuredStep& step);

  StepTimes* steps_;
  double batch_;
  double progress_ = 0;
  std::size_t epoch_ = 0;
  std::set<std::tuple<std::int64_t, Gpus, double>> seen_;
  std::vector<StepObservation> observed_;
  Gpus most_observed_ = 0;
  std::optional<StepModel> model_;
  GradientNoise noise_;
  std::int64_t version_ = 0;
};

}  // namespace rubato::sched::sim
