#include "operator/control/plan_executor.h"

#include "common/planted.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"

#include <algorithm>

namespace rubato::control {

namespace {

using json::Value;

api::Allocation next_allocation(const api::TrainingJob& job, std::int64_t leader, WallTime now) {
  api::Allocation next = job.status.allocation.value_or(api::Allocation{});
  if (!planted(Bug::kSameEpoch)) ++next.epoch;
  next.leader_transition = leader;
  next.since = now;
  return next;
}

Value operation(const char* op, const char* path, Value value) {
  return Value::object({{"op", op}, {"path", path}, {"value", std::move(value)}});
}

}  // namespace

api::Allocation allocation_after(const api::TrainingJob& job, const sched::Action& action,
                                 std::int64_t leader, WallTime now, std::int64_t named_ordinal) {
  api::Allocation next = next_allocation(job, leader, now);
  next.next_ordinal = std::max(next.next_ordinal, named_ordinal + 1);
  next.reason = to_text(action.cause);
  next.preempted.reset();
  if (action.kind == sched::ActionKind::kPreempt) next.preempted = true;
  const bool had_pods = !next.pods.empty();
  std::erase_if(next.pods, [&](const api::AllocatedPod& pod) {
    return std::find(action.remove.begin(), action.remove.end(), pod.ordinal) !=
           action.remove.end();
  });
  for (const sched::Placement& placement : action.add) {
    api::AllocatedPod pod;
    pod.ordinal = planted(Bug::kReuseOrdinal) ? static_cast<std::int64_t>(next.pods.size())
                                              : next.next_ordinal++;
    pod.name = api::pod_name(job.meta.name, pod.ordinal);
    pod.node = placement.node;
    pod.gpu_type = placement.gpu_type;
    pod.gpus = static_cast<std::int32_t>(placement.gpus);
    pod.cell = placement.cell;
    next.pods.push_back(std::move(pod));
  }
  next.gpus = 0;
  for (const auto& pod : next.pods) next.gpus += pod.gpus;
  if (next.pods.empty())
    next.running_since.reset();
  else if (!had_pods)
    next.running_since = now;
  else if (!next.running_since)  // an earlier release began it: it has run since then at least
    next.running_since = job.status.allocation->since.value_or(now);
  return next;
}

api::Allocation renewed(const api::TrainingJob& job, std::int64_t leader, WallTime now) {
  api::Allocation next = next_allocation(job, leader, now);
  if (job.status.allocation) {
    next.since = job.status.allocation->since;
  } else {
    next.reason = "nothing is decided";
  }
  return next;
}

api::Allocation released(const api::TrainingJob& job, const std::string& reason,
                         std::int64_t leader, WallTime now) {
  api::Allocation next = next_allocation(job, leader, now);
  next.pods.clear();
  next.running_since.reset();
  next.gpus = 0;
  next.reason = reason;
  next.preempted.reset();
  return next;
}

Result<json::Value> write_allocation(kube::Client& client, const api::TrainingJob& job,
                                     const api::Allocation& allocation) {
  // A write that comes late may find another job under the name, whose epochs begin anew.
  Value patch = Value::array({operation("test", "/metadata/uid", job.meta.uid)});
  if (job.status.allocation) {
    patch.push_back(operation("test", "/status/allocation/epoch", job.status.allocation->epoch));
  } else {
    // The first decision: nothing to test in the status, so the whole object must be unchanged.
    patch.push_back(operation("test", "/metadata/resourceVersion", job.meta.resource_version));
  }
  if (const auto& membership = job.status.membership) {
    // A new leader takes every membership over before it acts: what an old one still sends fails.
    if (membership->leader > allocation.leader_transition)
      return Error(Code::kConflict, "a newer leader has this job");
    patch.push_back(operation("test", "/status/membership/leader", membership->leader));
  }
  patch.push_back(operation("add", "/status/allocation", api::encode(allocation)));
  return client.patch(api::kTrainingJob, {job.meta.ns, job.meta.name}, kube::PatchType::kJson,
                      patch, {.subresource = "status"});
}

}  // namespace rubato::control
