#include "operator/control/awaited_room.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace rubato::control {

namespace {
// Pods that the job counts on are not let go, even while they terminate: those are replaced at
// once. Of a job that has ended, say, there are none.
std::unordered_set<std::string_view> counted_on(const JobObject& object, const World& world) {
  std::unordered_set<std::string_view> names;
  const api::TrainingJob& job = object.job;
  if (!is_schedulable(object) || has_ended(world, job.meta.uid)) return names;
  if (!job.status.allocation) return names;
  for (const auto& allocated : job.status.allocation->pods) names.insert(allocated.name);
  return names;
}
}  // namespace

std::optional<MonoTime> AwaitedRoom::wait_until(const World& world, Duration patience) {
  std::unordered_map<std::string_view, std::unordered_set<std::string_view>> stay;  // by job uid
  for (const auto& job : world.jobs) stay.emplace(job->job.meta.uid, counted_on(*job, world));
  std::set<std::string> leaving;
  for (const auto& pod : world.pods) {
    if (!pod->meta.owner || pod->node_name.empty() || pod->is_finished()) continue;
    const auto names = stay.find(pod->meta.owner->uid);
    if (names != stay.end() && !names->second.contains(pod->meta.name))
      leaving.insert(pod->meta.uid);
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
