#include "scheduler/model/sharing.h"

#include <map>

namespace rubato::sched {

Resources taken_by_pod(const Job& job) {
  Resources taken = job.per_pod;
  if (!job.guest_of.empty()) taken.gpus = 0;
  return taken;
}

std::vector<bool> hand_over(const Job& job, std::vector<Job>& jobs) {
  std::vector<bool> is_handed_over(job.held.size(), false);
  std::map<NodeId, std::int64_t> pods_of_guests;
  for (Job& guest : jobs) {
    if (guest.guest_of != job.id) continue;
    guest.guest_of.clear();
    for (const Held& held : guest.held)
      if (held.gives_room()) ++pods_of_guests[held.node];
  }
  for (std::size_t i = 0; i < job.held.size() && !pods_of_guests.empty(); ++i) {
    const auto found = pods_of_guests.find(job.held[i].node);
    if (!job.held[i].stays() || found == pods_of_guests.end()) continue;
    is_handed_over[i] = true;
    if (--found->second == 0) pods_of_guests.erase(found);
  }
  return is_handed_over;
}

std::vector<Resources> freed_by_end(const Job& job, std::vector<Job>& jobs) {
  std::vector<Resources> freed(job.held.size(), taken_by_pod(job));
  const std::vector<bool> is_handed_over = hand_over(job, jobs);
  for (std::size_t i = 0; i < freed.size(); ++i)
    if (is_handed_over[i]) freed[i].gpus = 0;
  return freed;
}

}  // namespace rubato::sched
