#include "operator/control/captured_queues.h"

#include "scheduler/model/queue_tree.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace rubato::control {

namespace {

sched::Preempts preempts(api::Preemption preemption) {
  switch (preemption) {
    case api::Preemption::kNever:
      return sched::Preempts::kNobody;
    case api::Preemption::kWithinQueue:
      return sched::Preempts::kOwnQueue;
    case api::Preemption::kAnyQueue:
      return sched::Preempts::kAnyQueue;
  }
  return sched::Preempts::kNobody;
}

sched::Queue captured_queue(const QueueObject& object) {
  sched::Queue queue;
  queue.name = object.meta.name;
  queue.parent = object.queue.spec.parent;
  queue.weight = object.queue.spec.weight;
  queue.borrowing = object.queue.spec.borrowing;
  queue.preempts = preempts(object.queue.spec.preemption);
  for (const auto& quota : object.queue.spec.quotas) {
    sched::Quota& of_type = queue.quotas[quota.gpu_type];
    of_type.guaranteed = quota.guaranteed;
    if (quota.limit) of_type.limit = *quota.limit;
  }
  for (const auto& cells : object.queue.spec.cells)
    queue.cells.push_back({cells.gpu_type, cells.level, cells.count});
  if (const auto created = object.queue.meta.creation_time)
    queue.created = std::chrono::duration<double>(created->time_since_epoch()).count();
  return queue;
}

}  // namespace

CapturedQueues::CapturedQueues(const std::vector<std::shared_ptr<const QueueObject>>& objects) {
  for (const auto& object : objects) objects_[object->meta.name] = object;
}

std::string CapturedQueues::queue_of(const api::TrainingJob& job) const {
  const auto object = objects_.find(job.spec.queue);
  const bool has_limits =
      object != objects_.end() && !object->second->queue.spec.limits_per_namespace.empty();
  return has_limits ? job.spec.queue + "/" + job.meta.ns : job.spec.queue;
}

std::string CapturedQueues::why_not_admitted(const api::TrainingJob& job) const {
  const auto object = objects_.find(job.spec.queue);
  if (object == objects_.end()) return "";
  const auto& names = object->second->queue.spec.namespaces;
  if (names.empty() || std::ranges::find(names, job.meta.ns) != names.end()) return "";
  return fmt::format(
      "queue \"{}\" takes jobs of other namespaces only ({}); change spec.queue, or add {} to "
      "the queue's spec.namespaces",
      job.spec.queue, fmt::join(names, ", "), job.meta.ns);
}

std::map<std::string, sched::Queue> CapturedQueues::with_jobs(
    const std::vector<std::shared_ptr<const JobObject>>& jobs) const {
  std::map<std::string, sched::Queue> queues;
  // Without any TrainingQueue the cluster behaves as one open queue named "default".
  queues["default"] = {.name = "default"};
  for (const auto& [name, object] : objects_) queues[name] = captured_queue(*object);
  std::vector<std::string*> refused;  // queue_status() says why
  for (auto& [name, queue] : queues)
    if (!sched::why_no_parent(queues, queue).empty()) refused.push_back(&queue.parent);
  for (std::string* parent : refused) parent->clear();
  for (const auto& job : jobs) {
    std::string name = queue_of(job->job);
    const std::string& named = job->job.spec.queue;
    if (name == named || queues.contains(name)) continue;
    sched::Queue queue{.name = name, .parent = named, .of_one_user = true};
    for (const auto& one : objects_.at(named)->queue.spec.limits_per_namespace)
      queue.quotas[one.gpu_type].limit = one.limit;
    queues.emplace(std::move(name), std::move(queue));
  }
  return queues;
}

}  // namespace rubato::control
