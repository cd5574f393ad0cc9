#include "operator/control/unreleased_room.h"

#include "scheduler/model/queue_tree.h"
#include "scheduler/model/quota.h"

#include <algorithm>

namespace rubato::control {

UnreleasedRoom::UnreleasedRoom(const sched::ClusterState& decided_on) : state_(decided_on) {
  for (const sched::Job& job : state_.jobs) jobs_.emplace(job.id, &job);
}

const sched::Job* UnreleasedRoom::find(const sched::JobId& id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

void UnreleasedRoom::note(const sched::Action& action) {
  const sched::Job* job = find(action.job);
  if (job == nullptr || action.remove.empty()) return;
  for (const sched::Held& held : job->held) nodes_.insert(held.node);
  for (const std::string& queue : sched::with_parents(state_.queues, job->queue))
    if (sched::is_bounded(state_.queues.at(queue))) queues_.insert(queue);
}

bool UnreleasedRoom::is_needed_by(const sched::Action& action) const {
  if (std::ranges::any_of(action.add,
                          [&](const auto& placed) { return nodes_.contains(placed.node); }))
    return true;
  const sched::Job* job = find(action.job);
  if (job == nullptr || action.add.empty()) return false;
  return std::ranges::any_of(sched::with_parents(state_.queues, job->queue),
                             [&](const std::string& queue) { return queues_.contains(queue); });
}

}  // namespace rubato::control
