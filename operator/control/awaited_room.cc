#include "operator/control/awaited_room.h"

#include <algorithm>
#include <unordered_map>

namespace rubato::control {

namespace {
// One that its job counts on is not, even while it terminates: that one is replaced at once.
bool is_let_go(const kube::Pod& pod, const JobObject& object, const World& world) {
  const api::TrainingJob& job = object.job;
  if (!is_schedulable(object) || has_ended(world, job.meta.uid)) return true;
  if (!job.status.allocation) return true;
  return std::ranges::none_of(job.status.allocation->pods, [&](const auto& allocated) {
    return allocated.name == pod.meta.name;
  });
}
}  // namespace

std::optional<MonoTime> AwaitedRoom::wait_until(const World& world, Duration patience) {
  std::unordered_map<std::string_view, const JobObject*> jobs;
  for (const auto& job : world.jobs) jobs.emplace(job->job.meta.uid, job.get());
  std::set<std::string> leaving;
  for (const auto& pod : world.pods) {
    if (!pod->meta.owner || pod->node_name.empty() || pod->is_finished()) continue;
    const auto job = jobs.find(pod->meta.owner->uid);
    if (job != jobs.end() && is_let_go(*pod, *job->second, world)) leaving.insert(pod->meta.uid);
  }
  std::erase_if(waited_for_, [&](const auto& uid) { return !leaving.contains(uid); });
  if (std::ranges::includes(waited_for_, leaving)) {
    since_.reset();
    return std::nullopt;
  }
  if (!since_) since_ = world.now;
  if (world.now < *since_ + patience) return *since_ + patience;
  waited_for_ = std::move(leaving);
  since_.reset();
  return std::nullopt;
}

}  // namespace rubato::control
