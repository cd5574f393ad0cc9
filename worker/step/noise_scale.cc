#include "worker/step/noise_scale.h"

#include <cmath>

namespace rubato::worker {

namespace {
constexpr double kKept = 0.9;  // of the averages, at each step that is measured
}

bool measures_noise(std::uint64_t step, std::uint32_t micro_batches) {
  return micro_batches > 1 && step % kNoiseMeasuredEvery == kNoiseMeasuredEvery - 1;
}

NoiseScale::NoiseScale(double trace, double signal) : trace_(trace), signal_(signal) {}

void NoiseScale::add(std::uint32_t micro_batches, double squared_norms, double norm_of_mean) {
  if (micro_batches < 2) return;
  const double count = micro_batches;
  const double of_one = squared_norms / count;
  const double of_mean = norm_of_mean * norm_of_mean;
  const double trace = (of_one - of_mean) * count / (count - 1);
  const double signal = of_mean - trace / count;
  if (!std::isfinite(trace) || !std::isfinite(signal)) return;
  const bool is_first = trace_ == 0 && signal_ == 0;
  trace_ = is_first ? trace : kKept * trace_ + (1 - kKept) * trace;
  signal_ = is_first ? signal : kKept * signal_ + (1 - kKept) * signal;
}

std::optional<double> NoiseScale::micro_batches() const {
  if (!(trace_ > 0 && signal_ > 0)) return std::nullopt;
  const double scale = trace_ / signal_;
  return std::isfinite(scale) ? std::optional(scale) : std::nullopt;
}

}  // namespace rubato::worker
