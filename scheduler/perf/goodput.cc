#include "scheduler/perf/goodput.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

bool is_valid(const BatchLimits& limits) {
  return std::isfinite(limits.max_batch) && std::isfinite(limits.max_local) &&
         limits.first_batch > 0 && limits.max_batch >= limits.first_batch &&
         limits.min_local >= 1 && std::floor(limits.max_local) >= limits.min_local &&
         limits.max_accumulated >= 0;
}

bool is_valid(const GradientNoise& noise) {
  return std::isfinite(noise.square) && std::isfinite(noise.variance);
}

bool is_valid(Spread spread) { return spread.nodes >= 1 && spread.gpus >= spread.nodes; }

}  // namespace

double overlapped(double a, double b, double gamma) {
  const double more = std::max(a, b);
  if (more <= 0) return 0;
  const double part = std::min(a, b) / more;
  return more * std::pow(1 + std::pow(part, gamma), 1 / gamma);
}

double StepModel::grad_s(double local_batch) const { return grad_alpha + grad_beta * local_batch; }

double StepModel::sync_s(Spread spread) const {
  if (spread.gpus <= 1) return 0;
  const double beyond_two = static_cast<double>(spread.gpus - 2);
  return spread.nodes <= 1 ? local_alpha + local_beta * beyond_two
                           : remote_alpha + remote_beta * beyond_two;
}

double StepModel::step_s(Spread spread, double local_batch, std::int64_t accumulated) const {
  const double grad = grad_s(local_batch);
  return static_cast<double>(accumulated) * grad + overlapped(grad, sync_s(spread), gamma);
}

double gain(const GradientNoise& noise, double batch, double first_batch) {
  const double scale = batch / first_batch;
  const double variance = std::max(0.0, noise.variance);
  const double square = std::max(0.0, noise.square);
  const double below = variance / scale + square;
  return below > 0 ? (variance + square) / below : 1;
}

double efficiency(const GradientNoise& noise, double batch, double first_batch) {
  return std::min(1.0, gain(noise, batch, first_batch) * first_batch / batch);
}

std::optional<BatchChoice> split_batch(const StepModel& model, const GradientNoise& noise,
                                       const BatchLimits& limits, Spread spread, double batch) {
  if (!is_valid(limits) || !is_valid(noise) || !is_valid(spread) ||
      !(batch >= limits.first_batch) || batch > limits.max_batch)
    return std::nullopt;
  const auto gpus = static_cast<double>(spread.gpus);
  const double per_gpu = batch / gpus;
  double passes = std::max(1.0, std::ceil(per_gpu / std::floor(limits.max_local)));
  if (limits.needs_noise && spread.gpus == 1 && batch > limits.first_batch)
    passes = std::max(passes, 2.0);
  if (passes - 1 > static_cast<double>(limits.max_accumulated)) return std::nullopt;
  BatchChoice choice;
  choice.accumulated = static_cast<std::int64_t>(passes) - 1;
  choice.local_batch = std::ceil(per_gpu / passes);
  if (choice.local_batch < limits.min_local) return std::nullopt;
  choice.batch = choice.local_batch * gpus * passes;
  const double seconds = model.step_s(spread, choice.local_batch, choice.accumulated);
  if (!(seconds > 0) || !std::isfinite(seconds)) return std::nullopt;
  choice.samples_per_s = choice.batch / seconds;
  choice.efficiency = efficiency(noise, choice.batch, limits.first_batch);
  choice.goodput = choice.samples_per_s * choice.efficiency;
  if (!std::isfinite(choice.goodput)) return std::nullopt;
  return choice;
}

std::optional<BatchChoice> best_batch(const StepModel& model, const GradientNoise& noise,
                                      const BatchLimits& limits, Spread spread) {
  if (!is_valid(limits)) return std::nullopt;
  const double ratio = limits.max_batch / limits.first_batch;
  const int candidates = ratio > 1 ? kBatchCandidates : 1;
  std::optional<BatchChoice> best;
  for (int i = 0; i < candidates; ++i) {
    const double part = candidates > 1 ? static_cast<double>(i) / (candidates - 1) : 0;
    const double batch = std::min(limits.max_batch, limits.first_batch * std::pow(ratio, part));
    const auto choice = split_batch(model, noise, limits, spread, batch);
    if (choice && (!best || choice->goodput > best->goodput)) best = choice;
  }
  return best;
}

}  // namespace rubato::sched
