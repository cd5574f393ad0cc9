// What the scheduler is told of speeds and times.
#include "scheduler/perf/throughput.h"
#include "scheduler/sim/engine.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched::sim {

void Engine::tell_speeds(const TraceJob& trace, Job& job) const {
  job.measured.clear();
  for (const std::string& type : job.allow)
    for (Gpus n = job.min; n <= job.max; ++n)
      if (trace.speed.has_point(type, n) || n == job.min)
        job.measured.push_back({type, n, speed_of(trace, type, n)});
}

// The speed of the job at its present size becomes known, unless it is.
void Engine::observe(std::size_t index) {
  const Run& run = runs_[index];
  if (shares(run)) return observe_sharing(index);
  const std::string& type = types_[run.type];
  const double speed = static_cast<double>(run.rate) * 1000.0 / run.quanta_per_unit;
  const auto add = [&](std::vector<ThroughputPoint>& points) {
    const bool is_known = std::any_of(points.begin(), points.end(), [&](const auto& point) {
      return point.gpu_type == type && point.gpus == run.training;
    });
    if (!is_known) points.push_back({type, run.training, speed});
    changed_ = changed_ || !is_known;
  };
  const std::string& profile = trace_[index].profile;
  if (profile.empty()) {
    add(job_of(index).measured);
    return tell_times(index);
  }
  add(observed_[profile]);
  for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
    if (trace_[index_of_job_[i]].profile != profile) continue;
    add(state_.jobs[i].measured);
    tell_times(index_of_job_[i]);
  }
}

// How long it takes at its minimum, in all and from now on, as far as the policy may know it.
void Engine::tell_times(std::size_t index) {
  if (knows() == Knows::kNothing) return;
  const TraceJob& trace = trace_[index];
  Job& job = job_of(index);
  double speed = 0;
  if (options_.oracle == Oracle::kTruth) {
    for (const std::string& type : job.allow)
      speed = std::max(speed, speed_of(trace, type, job.min));
  } else if (!job.measured.empty()) {
    for (const ThroughputPoint& point : job.measured)
      speed = std::max(speed, Throughput(job.measured, point.gpu_type).at(job.min));
  }
  if (speed <= 0) return;
  const auto time_of = [&](double units) {
    return std::llround(std::ceil(units / speed * 1000.0));
  };
  const double left = static_cast<double>(runs_[index].left) / runs_[index].quanta_per_unit;
  if (knows() == Knows::kDuration) job.duration_ms = time_of(trace.work);
  if (knows() == Knows::kRemaining) job.remaining_ms = time_of(left);
}

}  // namespace rubato::sched::sim
