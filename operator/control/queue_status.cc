#include "operator/control/queue_status.h"

#include "common/some_of.h"
#include "common/words.h"

#include <fmt/format.h>

namespace rubato::control {

sched::Queues queue_tree(const World& world) {
  sched::Queues queues;
  queues["default"].name = "default";
  for (const auto& object : world.queues) {
    sched::Queue& queue = queues[object->meta.name];
    queue.name = object->meta.name;
    queue.parent = object->queue.spec.parent;
  }
  return queues;
}

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
    } else if (!api::is_finished(job.status.conditions) && !job.spec.suspend &&
               !job.meta.is_deleting()) {
      ++queue.pending;
    }
  }
  const sched::Queues tree = queue_tree(world);
  const auto own = queues;
  const auto own_by_type = by_type;
  for (const auto& [name, of_part] : own) {
    for (const std::string& one : sched::with_parents(tree, name)) {
      if (one == name) continue;
      api::TrainingQueueStatus& whole = queues[one];
      whole.running += of_part.running;
      whole.pending += of_part.pending;
      whole.gpus += of_part.gpus;
      const auto types = own_by_type.find(name);
      if (types == own_by_type.end()) continue;
      for (const auto& [type, gpus] : types->second) by_type[one][type] += gpus;
    }
  }
  for (auto& [name, types] : by_type) {
    for (const auto& [type, gpus] : types) queues[name].usage.push_back({type, gpus});
  }
  return queues;
}

std::string missing_guarantees(const api::TrainingQueueSpec& spec,
                               const std::vector<sched::Node>& nodes) {
  constexpr std::size_t kQuotasTold = 8;
  std::map<std::string, std::int64_t> there;
  for (const sched::Node& node : nodes) {
    there[node.gpu_type] += node.gpus_total;
    there["*"] += node.gpus_total;
  }
  std::vector<std::string> missing;
  for (const api::QueueQuota& quota : spec.quotas) {
    const std::int64_t has = there[quota.gpu_type];
    if (quota.guaranteed <= has) continue;
    const std::string type =
        quota.gpu_type == "*" ? "" : fmt::format(" of type \"{}\"", quota.gpu_type);
    missing.push_back(
        fmt::format("{}{}, and the nodes have {}", counted(quota.guaranteed, "GPU"), type, has));
  }
  return some_of(missing, kQuotasTold, "; ");
}

api::TrainingQueueStatus queue_status(const api::TrainingQueue& object,
                                      api::TrainingQueueStatus usage, const NotKept& not_kept,
                                      WallTime now) {
  usage.conditions = object.status.conditions;
  api::Condition enforced;
  enforced.type = api::condition::kEnforced;
  enforced.observed_generation = object.meta.generation;
  std::vector<std::string> partly;
  if (not_kept.weight && object.spec.weight != 1.0)
    partly.emplace_back(
        "spec.weight does not count under the policy in force; set parameters.queueWeights of the "
        "SchedulingPolicy to 1");
  if (!not_kept.guarantees.empty())
    partly.push_back("spec.quotas guarantees more than there is: " + not_kept.guarantees +
                     "; guarantee less, or add nodes");
  enforced.status = partly.empty() ? api::ConditionStatus::kTrue : api::ConditionStatus::kFalse;
  enforced.reason = partly.empty() ? api::reason::kAllEnforced : api::reason::kPartlyEnforced;
  enforced.message = partly.empty()
                         ? "parent, guarantees, limits, borrowing and cells hold"
                         : fmt::format("{}. All else holds", fmt::join(partly, ". Also "));
  const auto refuse = [&](std::string_view reason, std::string_view field, std::string_view why) {
    if (why.empty()) return;
    enforced.status = api::ConditionStatus::kFalse;
    enforced.reason = reason;
    enforced.message = fmt::format("{} is not kept, as if it were not there: {}", field, why);
  };
  refuse(api::reason::kCellsRefused, "spec.cells", not_kept.cells);
  refuse(api::reason::kParentRefused, "spec.parent", not_kept.parent);
  api::set_condition(usage.conditions, std::move(enforced), now);
  return usage;
}

}  // namespace rubato::control
