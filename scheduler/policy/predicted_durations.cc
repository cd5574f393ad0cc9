#include "scheduler/policy/predicted_durations.h"

#include <optional>

namespace rubato::sched {
namespace {

std::string_view stem_of(const Job& job) {
  const std::string_view name = job.name;
  return name.substr(0, name.rfind('-'));
}

}  // namespace

PredictedDurations::PredictedDurations(const Problem& problem) {
  for (const Job& job : problem.state().jobs) {
    if (!job.duration_ms) continue;
    by_name_[{job.queue, stem_of(job)}].add(*job.duration_ms);
    by_queue_[{job.queue, job.min}].add(*job.duration_ms);
    by_gpus_[job.min].add(*job.duration_ms);
    all_.add(*job.duration_ms);
  }
}

double PredictedDurations::of(const Job& job) const {
  if (job.duration_ms) return static_cast<double>(*job.duration_ms);
  const auto look_up = [](const auto& means, const auto& key) -> std::optional<double> {
    const auto found = means.find(key);
    if (found == means.end()) return std::nullopt;
    return found->second.value();
  };
  std::optional<double> found =
      look_up(by_name_, std::pair(std::string_view(job.queue), stem_of(job)));
  if (!found) found = look_up(by_queue_, std::pair(std::string_view(job.queue), job.min));
  if (!found) found = look_up(by_gpus_, job.min);
  return found.value_or(all_.value());
}

}  // namespace rubato::sched
