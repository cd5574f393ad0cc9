#include "scheduler/perf/throughput.h"

#include <algorithm>

namespace rubato::sched {

Throughput::Throughput(const std::vector<ThroughputPoint>& measured, const std::string& gpu_type) {
  // Seconds per token is linear in x = 1/n: y = c·x + r.
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const ThroughputPoint& point : measured) {
    if (point.gpu_type != gpu_type || point.gpus <= 0 || point.tokens_per_second <= 0) continue;
    const double x = 1.0 / static_cast<double>(point.gpus);
    const double y = 1.0 / point.tokens_per_second;
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  if (n == 0) return;
  measured_ = true;
  const double spread = n * sxx - sx * sx;
  if (spread > 1e-12) {
    shared_ = std::max(0.0, (n * sxy - sx * sy) / spread);
    serial_ = std::max(0.0, (sy - shared_ * sx) / n);
    if (shared_ + serial_ > 0) return;
  }
  // One count only: split its step by the prior.
  const double x = sx / n;
  const double y = sy / n;
  serial_ = kPriorSerialShare * y;
  shared_ = (y - serial_) / x;
}

double Throughput::at(Gpus gpus) const {
  if (gpus <= 0) return 0;
  return 1.0 / (shared_ / static_cast<double>(gpus) + serial_);
}

}  // namespace rubato::sched
