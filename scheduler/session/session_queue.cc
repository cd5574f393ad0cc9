// Room in a queue that has all that it may have: what its other jobs have beyond their size, and
// those whom the job may displace. Which nodes they are on counts only in the end.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <ranges>

namespace rubato::sched {

// None: its queue's jobs cannot give enough, or not where it can be.
std::optional<std::vector<std::string>> Session::make_room_in_queue(Entry& wanting, Gpus wanted) {
  const Gpus missing = wanted - wanting.now;
  if (room_for(wanting) + most_lent(wanting) < missing) return std::nullopt;
  const std::size_t mark = free_.mark();
  give_back_what_leaves();
  Loan loan;
  lend_surplus(wanting, missing, loan);
  std::vector<Entry*> stopped;
  if (config_.preempt) stopped = lend_jobs(wanting, missing, loan);
  const bool helps = room_for(wanting) >= missing &&
                     reserve_if_fits(wanting, missing / wanting.job->per_pod.gpus, mark);
  for (const Lent& one : loan.lent) {
    quota_.take(queue_of(wanting), one.pod->type, one.pod->gpus);
    one.pod->lent = false;
  }
  if (!helps) {
    free_.undo_to(mark);
    return std::nullopt;
  }
  auto names = stop_victims(stopped, std::move(loan.victims), wanting);
  keep_quota(wanting, missing);
  return names;
}

// Others of the queue, which come later, are not to take what is being made free for it.
void Session::keep_quota(const Entry& wanting, Gpus gpus) {
  const QueueIndex queue = queue_of(wanting);
  const std::vector<TypeIndex>& types = types_for(wanting);
  if (!quota_.is_bounded(queue) || types.empty()) return;
  kept_[queue] += gpus;
  quota_.take(queue,
              *std::ranges::max_element(types, {},
                                        [&](TypeIndex type) { return quota_.room(queue, type); }),
              gpus);
}

bool Session::may_lend(const Entry& from, const Entry& wanting) {
  return &from != &wanting && from.job->settled && from.now > 0 && from.add.empty();
}

// What others of its queue can give at most.
Gpus Session::most_lent(const Entry& wanting) const {
  Gpus most = 0;
  for (const Entry* from : holders_of_queue_[queue_of(wanting)])
    if (may_lend(*from, wanting))
      most += config_.preempt && may_displace(wanting, *from)
                  ? from->now
                  : std::max<Gpus>(from->now - least_kept(*from), 0);
  return most;
}

void Session::lend(Entry& from, Pod& pod, Loan& loan) {
  free_.give_back(node_of(pod), from.job->per_pod);
  quota_.give_back(queue_of(from), pod.type, pod.gpus);
  pod.lent = true;
  loan.lent.push_back({&from, &pod});
}

// The last in order gives first.
void Session::lend_surplus(const Entry& wanting, Gpus missing, Loan& loan) {
  for (Entry* from : std::views::reverse(holders_of_queue_[queue_of(wanting)])) {
    if (!may_lend(*from, wanting)) continue;
    Gpus left = from->now;
    for (Pod& pod : from->pods) {
      if (room_for(wanting) >= missing) return;
      const auto next = size_at_most(*from->job, left - pod.gpus);
      if (pod.in_cell || !next || *next != left - pod.gpus || *next < least_kept(*from)) break;
      lend(*from, pod, loan);
      loan.victims.emplace_back(from, pod.ordinal);
      left = *next;
    }
  }
}

// Jobs to stop, last in order first; who comes first is spared first.
std::vector<Session::Entry*> Session::lend_jobs(const Entry& wanting, Gpus missing, Loan& loan) {
  std::vector<Entry*> stopped;
  for (Entry* entry : std::views::reverse(holders_of_queue_[queue_of(wanting)])) {
    if (room_for(wanting) >= missing) break;
    if (!may_lend(*entry, wanting) || !may_displace(wanting, *entry)) continue;
    stopped.push_back(entry);
    for (Pod& pod : entry->pods)
      if (!pod.lent) lend(*entry, pod, loan);
  }
  for (Entry* victim : std::vector<Entry*>(stopped.rbegin(), stopped.rend()))
    if (keeps_its_pods(*victim, wanting, missing, loan)) std::erase(stopped, victim);
  return stopped;
}

// If there is room for the other one all the same.
bool Session::keeps_its_pods(const Entry& victim, const Entry& wanting, Gpus missing, Loan& loan) {
  const auto is_its = [&](const Lent& one) { return one.from == &victim; };
  for (const Lent& one : loan.lent)
    if (is_its(one)) quota_.take(queue_of(victim), one.pod->type, one.pod->gpus);
  if (room_for(wanting) < missing) {
    for (const Lent& one : loan.lent)
      if (is_its(one)) quota_.give_back(queue_of(victim), one.pod->type, one.pod->gpus);
    return false;
  }
  for (const Lent& one : loan.lent) {
    if (!is_its(one)) continue;
    free_.take(node_of(*one.pod), victim.job->per_pod);
    one.pod->lent = false;
  }
  std::erase_if(loan.lent, is_its);
  std::erase_if(loan.victims, [&](const auto& one) { return one.first == &victim; });
  return true;
}

}  // namespace rubato::sched
