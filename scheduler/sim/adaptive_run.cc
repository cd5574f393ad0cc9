#include "scheduler/sim/adaptive_run.h"

#include "common/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace rubato::sched::sim {

std::optional<double> AdaptiveRun::train(const GpusByNode& placement, double seconds) {
  const Application& of = steps_->application();
  const Spread spread{std::ssize(placement),
                      std::accumulate(placement.begin(), placement.end(), Gpus{0})};
  double passed = 0;
  while (passed < seconds) {
    CHECK_LT(epoch_, of.count_epochs());
    const BatchSplit split = split_on(spread);
    observe(spread, split.local_batch, steps_->at(placement, split.local_batch));
    const double batch = static_cast<double>(spread.gpus) * split.local_batch *
                         static_cast<double>(split.accumulated + 1);
    noise_ = of.noise(batch, epoch_);
    const double speed = goodput_of(*steps_, placement, split, epoch_);
    const double end = of.progress_after(epoch_ + 1);
    if (progress_ + speed * (seconds - passed) < end) {
      progress_ += speed * (seconds - passed);
      break;
    }
    passed += std::nearbyint((end - progress_) / speed);
    progress_ = end;
    ++version_;
    if (++epoch_ == of.count_epochs()) return passed;
  }
  return std::nullopt;
}

BatchSplit AdaptiveRun::split_on(Spread spread) const {
  const BatchLimits& limits = steps_->application().limits;
  const auto gpus = static_cast<double>(spread.gpus);
  if (batch_ > 0) return split_of(batch_, spread.gpus, limits);
  const auto best = model_ ? best_batch(*model_, noise_, limits, spread) : std::nullopt;
  if (!best)
    return split_of(std::max(limits.first_batch, limits.min_local * gpus), spread.gpus, limits);
  const double most =
      std::floor(limits.max_batch / (gpus * static_cast<double>(best->accumulated + 1)));
  return {std::min(best->local_batch, most), best->accumulated};
}

void AdaptiveRun::observe(Spread spread, double local_batch, const MeasuredStep& step) {
  most_observed_ = std::max(most_observed_, spread.gpus);
  if (!seen_.emplace(spread.nodes, spread.gpus, local_batch).second) return;
  observed_.push_back(
      {.spread = spread, .local_batch = local_batch, .step_s = step.step_s, .sync_s = step.sync_s});
  const auto fitted = fit_step(observed_);
  if (!fitted.ok()) return;
  model_ = fitted->model();
  ++version_;
}

std::vector<GoodputPoint> AdaptiveRun::goodput(const std::string& gpu_type, Gpus per_node,
                                               Gpus most) const {
  std::vector<GoodputPoint> points;
  if (!model_) return points;
  const BatchLimits& limits = steps_->application().limits;
  const auto add = [&](Spread spread) {
    const auto choice = batch_ > 0 ? split_batch(*model_, noise_, limits, spread, batch_)
                                   : best_batch(*model_, noise_, limits, spread);
    if (choice) points.push_back({gpu_type, spread.gpus, spread.nodes, choice->goodput});
  };
  most = std::min({most, 2 * most_observed_, steps_->application().gpus_most()});
  for (Gpus gpus = 1; gpus <= most; ++gpus) {
    if (gpus <= per_node) add({1, gpus});
    if (gpus > 1) add({2, gpus});
  }
  return points;
}

}  // namespace rubato::sched::sim
