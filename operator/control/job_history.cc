#include "operator/control/job_history.h"

#include "operator/control/job_training.h"
#include "scheduler/perf/throughput.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace rubato::control {
namespace {

// Measured, that one job hears of: its own and those of a ThroughputProfile.
constexpr std::size_t kPointsMost = 152;
constexpr std::size_t kLikeMost = 16;  // jobs of one kind that are looked at
constexpr double kLongest = 1e15;      // ms: of a job whose speed is next to nothing

template <class Point>
void add_point(const Point& point, std::vector<sched::ThroughputPoint>& to) {
  const bool is_known = std::ranges::any_of(to, [&](const auto& known) {
    return known.gpu_type == point.gpu_type && known.gpus == point.gpus;
  });
  if (!is_known && point.tokens_per_second > 0 && to.size() < kPointsMost)
    to.push_back({point.gpu_type, point.gpus, point.tokens_per_second});
}

void add_points(const JobObject& from, std::vector<sched::ThroughputPoint>& to) {
  if (!from.job.status.performance) return;
  for (const auto& point : from.job.status.performance->by_type) add_point(point, to);
}

}  // namespace

sched::TimeMs in_ms(WallTime time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

coordinator::GpuSeconds gpu_seconds_of(const api::TrainingJobStatus& status) {
  coordinator::GpuSeconds seconds;
  seconds.useful = status.useful_gpu_seconds.value_or(0);
  if (!status.lost_gpu_seconds) return seconds;
  seconds.queue = status.lost_gpu_seconds->queue;
  seconds.rescale = status.lost_gpu_seconds->rescale;
  seconds.failure = status.lost_gpu_seconds->failure;
  seconds.checkpoint = status.lost_gpu_seconds->checkpoint;
  seconds.straggling = status.lost_gpu_seconds->straggling.value_or(0);
  return seconds;
}

MeasuredSpeeds::MeasuredSpeeds(const std::vector<std::shared_ptr<const JobObject>>& jobs,
                               const std::vector<std::shared_ptr<const ProfileObject>>& profiles) {
  for (const auto& job : jobs)
    if (job->job.status.performance && jobs_.count(job->profile) < kLikeMost)
      jobs_.emplace(job->profile, job.get());
  for (const auto& object : profiles) {
    auto& points = points_[object->profile.spec.model];
    for (const auto& point : object->profile.spec.points) points.push_back(&point);
  }
  for (auto& [kind, points] : points_)
    std::ranges::stable_sort(points, std::greater{}, [](const auto* point) {
      return point->measured.value_or(WallTime{});
    });
}

std::vector<sched::ThroughputPoint> MeasuredSpeeds::of(const JobObject& job) const {
  std::vector<sched::ThroughputPoint> points;
  add_points(job, points);
  if (const auto known = points_.find(job.profile); known != points_.end())
    for (const auto* point : known->second) add_point(*point, points);
  const auto [from, to] = jobs_.equal_range(job.profile);
  for (auto other = from; other != to; ++other) add_points(*other->second, points);
  return points;
}

void add_history(const api::TrainingJob& job, sched::Job& seen) {
  seen.attained_gpu_ms = std::llround(gpu_seconds_of(job.status).held() * 1000);
  for (const auto& of_type : job.status.gpu_seconds_by_type)
    seen.attained_by_type[of_type.gpu_type] += std::llround(of_type.seconds * 1000);
  if (const auto& rescales = job.status.rescales) seen.restarts = rescales->count;
  if (const auto& performance = job.status.performance) {
    const auto ms = [](std::optional<double> seconds) {
      return seconds ? std::optional<sched::TimeMs>(
                           std::llround(std::clamp(*seconds * 1000, 0.0, kLongest)))
                     : std::nullopt;
    };
    seen.start_ms = ms(performance->start_seconds);
    seen.join_ms = ms(performance->join_seconds);
    seen.stall_ms = ms(performance->stall_seconds);
  }
  const auto& allocation = job.status.allocation;
  if (allocation && allocation->since && !allocation->pods.empty())
    seen.allocated_ms = in_ms(*allocation->since);
  if (allocation && allocation->running_since && !allocation->pods.empty())
    seen.running_since_ms = in_ms(*allocation->running_since);
  if (seen.measured.empty() || !job.spec.training) return;
  const api::Progress done = job.status.progress.value_or(api::Progress{});
  const double tokens_per_step = tokens_of_a_step(job, done.step, done.tokens);
  if (tokens_per_step <= 0) return;
  double fastest = 0;
  for (const sched::ThroughputPoint& point : seen.measured)
    fastest = std::max(fastest, sched::Throughput(seen.measured, point.gpu_type).at(seen.min));
  const double steps_per_ms = fastest / 1000 / tokens_per_step;
  const auto time_of = [&](std::int64_t steps) {
    const double ms = static_cast<double>(std::max<std::int64_t>(steps, 0)) / steps_per_ms;
    return static_cast<sched::TimeMs>(std::min(ms, kLongest));
  };
  const std::int64_t all = job.spec.training->stop.steps;
  seen.duration_ms = time_of(all);
  seen.remaining_ms = time_of(all - done.step);
}

}  // namespace rubato::control
