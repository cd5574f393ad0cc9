#include "operator/control/queue_status.h"

#include "common/words.h"

#include <fmt/format.h>

namespace rubato::control {

namespace {

// What is stored and not enforced, as people wrote it.
std::vector<std::string> not_enforced(const api::TrainingQueueSpec& spec) {
  std::vector<std::string> fields;
  if (spec.weight != 1.0) fields.emplace_back("spec.weight");
  if (!spec.parent.empty()) fields.emplace_back("spec.parent");
  return fields;
}

}  // namespace

std::map<std::string, api::TrainingQueueStatus> queue_usage(const World& world) {
  std::map<std::string, api::TrainingQueueStatus> queues;
  std::map<std::string, std::map<std::string, std::int32_t>> by_type;
  for (const auto& object : world.jobs) {
    const api::TrainingJob& job = object->job;
    api::TrainingQueueStatus& queue = queues[job.spec.queue];
    const std::int32_t gpus = job.status.allocation ? job.status.allocation->gpus : 0;
    if (gpus > 0) {
      ++queue.running;
      queue.gpus += gpus;
      for (const auto& pod : job.status.allocation->pods)
        by_type[job.spec.queue][pod.gpu_type] += pod.gpus;
    } else if (!api::is_finished(job.status.conditions) && !job.spec.suspend) {
      ++queue.pending;
    }
  }
  for (auto& [name, types] : by_type) {
    for (const auto& [type, gpus] : types) queues[name].usage.push_back({type, gpus});
  }
  return queues;
}

api::TrainingQueueStatus queue_status(const api::TrainingQueue& object,
                                      api::TrainingQueueStatus usage, const std::string& no_cells,
                                      WallTime now) {
  usage.conditions = object.status.conditions;
  api::Condition enforced;
  enforced.type = api::condition::kEnforced;
  enforced.observed_generation = object.meta.generation;
  const std::vector<std::string> missing = not_enforced(object.spec);
  const std::string_view them = agreeing(missing.size(), "it", "them");
  enforced.status = missing.empty() ? api::ConditionStatus::kTrue : api::ConditionStatus::kFalse;
  enforced.reason = missing.empty() ? api::reason::kAllEnforced : api::reason::kPartlyEnforced;
  enforced.message =
      missing.empty()
          ? "guarantees, limits, borrowing and cells hold"
          : fmt::format(
                "this release stores {} and does not act on {}; remove {}, or do not count on {}. "
                "Guarantees, limits, borrowing and cells hold",
                fmt::join(missing, ", "), them, them, them);
  if (!no_cells.empty()) {
    enforced.status = api::ConditionStatus::kFalse;
    enforced.reason = api::reason::kCellsRefused;
    enforced.message = "spec.cells is not kept, as if it were not there: " + no_cells;
  }
  api::set_condition(usage.conditions, std::move(enforced), now);
  return usage;
}

}  // namespace rubato::control
