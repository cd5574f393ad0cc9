#include "scheduler/perf/throughput.h"

#include <algorithm>

namespace rubato::sched {
namespace {

double inverse(Gpus gpus) { return 1.0 / static_cast<double>(gpus); }

}  // namespace

Throughput::Throughput(const std::vector<ThroughputPoint>& measured, std::string_view gpu_type) {
  for (const ThroughputPoint& point : measured) {
    if (point.gpu_type != gpu_type || point.gpus <= 0 ||
        !(point.tokens_per_second >= kLeastTokensPerSecond))
      continue;
    if (points_.empty()) points_.reserve(measured.size());
    points_.push_back({point.gpus, 1.0 / point.tokens_per_second});
  }
  if (points_.empty()) return;
  std::sort(points_.begin(), points_.end(), [](const Point& a, const Point& b) {
    return a.gpus != b.gpus ? a.gpus < b.gpus : a.seconds < b.seconds;
  });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points_.size();) {
    Point mean{points_[i].gpus, 0};
    std::size_t many = 0;
    for (; i < points_.size() && points_[i].gpus == mean.gpus; ++i, ++many)
      mean.seconds += points_[i].seconds;
    mean.seconds /= static_cast<double>(many);
    points_[kept++] = mean;
  }
  points_.resize(kept);
  const Point& last = points_.back();
  const double all = last.seconds / inverse(last.gpus);  // all of it shared
  slope_ = all * (1 - kPriorSerialShare);
  if (kept < 2) return;
  const Point& before = points_[kept - 2];
  slope_ = std::clamp((before.seconds - last.seconds) / (inverse(before.gpus) - inverse(last.gpus)),
                      0.0, all);
}

double Throughput::at(Gpus gpus) const {
  if (gpus <= 0) return 0;
  const double x = inverse(gpus);
  if (points_.empty()) return 1.0 / (slope_ * x + kPriorSerialShare);
  const auto next = std::lower_bound(points_.begin(), points_.end(), gpus,
                                     [](const Point& p, Gpus n) { return p.gpus < n; });
  if (next == points_.end()) {
    const Point& last = points_.back();
    return 1.0 / (last.seconds + slope_ * (x - inverse(last.gpus)));
  }
  if (next->gpus == gpus) return 1.0 / next->seconds;
  if (next == points_.begin())
    return static_cast<double>(gpus) / (next->seconds * static_cast<double>(next->gpus));
  const Point& before = *(next - 1);
  const double part = (x - inverse(next->gpus)) / (inverse(before.gpus) - inverse(next->gpus));
  return 1.0 / (next->seconds + part * (before.seconds - next->seconds));
}

}  // namespace rubato::sched
