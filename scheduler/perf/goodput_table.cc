#include "scheduler/perf/goodput_table.h"

#include <algorithm>
#include <tuple>

namespace rubato::sched {
namespace {

std::vector<GoodputPoint> points_of(const Job& job, std::string_view gpu_type) {
  std::vector<GoodputPoint> points;
  for (const GoodputPoint& point : job.goodput)
    if (point.gpu_type == gpu_type) points.push_back(point);
  std::ranges::sort(points, {}, [](const GoodputPoint& p) { return std::tuple(p.gpus, p.nodes); });
  return points;
}

// `points` are of one type and in order.
Throughput best_by_count(const Job& job, const std::vector<GoodputPoint>& points,
                         std::string_view gpu_type) {
  if (points.empty()) return {job.measured, gpu_type};
  std::vector<ThroughputPoint> best;
  for (const GoodputPoint& point : points) {
    if (best.empty() || best.back().gpus != point.gpus)
      best.push_back({point.gpu_type, point.gpus, point.per_second});
    double& most = best.back().tokens_per_second;
    most = std::max(most, point.per_second);
  }
  return {best, gpu_type};
}

}  // namespace

GoodputTable::GoodputTable(const Job& job, std::string_view gpu_type)
    : points_(points_of(job, gpu_type)), speed_(best_by_count(job, points_, gpu_type)) {
  most_ = points_.empty() ? std::max(job.min, 2 * speed_.most_measured()) : points_.back().gpus;
}

double GoodputTable::at(Gpus gpus, std::int64_t nodes) const {
  if (points_.empty()) return speed_.at(gpus);
  const auto [from, to] = std::ranges::equal_range(points_, gpus, {}, &GoodputPoint::gpus);
  if (from == to) return is_known() ? speed_.at(gpus) : 0;
  const auto beyond = std::upper_bound(
      from, to, nodes, [](std::int64_t n, const GoodputPoint& p) { return n < p.nodes; });
  return (beyond == from ? from : beyond - 1)->per_second;
}

}  // namespace rubato::sched
