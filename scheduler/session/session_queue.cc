// Room in a queue that has all that it may have, or whose parent has: what other jobs there have
// beyond their size, and those whom the job may displace. Which nodes they are on counts only in
// the end.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <ranges>

namespace rubato::sched {

// None: its queue's jobs cannot give enough, or not where it can be.
std::optional<std::vector<std::string>> Session::make_room_in_queue(Entry& wanting, Gpus wanted) {
  const Gpus missing = wanted - wanting.now;
  const Gpus room = room_for(wanting);
  const QueueIndex among = where_room_lacks(wanting, missing);
  const bool may_stop = may_stop_anybody(wanting, among);
  const Gpus most = may_stop ? most_lent(wanting, among) : surplus_of_queue_[among];
  if (most < missing - room) return std::nullopt;  // room may be without limit
  FromQueue from{.among = among, .may_stop = may_stop};
  auto names = try_rooms_in_queue(wanting, missing, from);
  if (names || !from.lacks_places || is_confined_to_cells(wanting)) return names;
  const Trial trial = trial_for(wanting);  // others of the queue have pods where it can be
  from = {.among = among, .may_stop = may_stop, .where = &trial};
  return try_rooms_in_queue(wanting, missing, from);
}

std::optional<std::vector<std::string>> Session::try_rooms_in_queue(Entry& wanting, Gpus missing,
                                                                    FromQueue& from) {
  for (int attempt = 0; attempt < kStopAttempts; ++attempt) {
    const std::size_t before = from.first.size();
    auto names = try_room_in_queue(wanting, missing, from);
    if (names || from.first.size() == before) return names;
  }
  return std::nullopt;
}

// None, and all is as it was: it does not help, or it would stop more jobs that are served before
// it all the same, which are noted.
std::optional<std::vector<std::string>> Session::try_room_in_queue(Entry& wanting, Gpus missing,
                                                                   FromQueue& from) {
  const std::size_t mark = free_.mark();
  give_back_what_leaves(types_of_use(wanting, bound_of(wanting).type));
  Loan loan{.lent = {}, .among = from.among, .victims = {}, .where = from.where};
  lend_surplus(wanting, missing, loan);
  std::vector<Entry*> stopped;
  if (from.may_stop) stopped = lend_jobs(wanting, missing, loan, from.first);
  const bool is_room =
      room_for(wanting) >= missing && !note_served_before(stopped, wanting, quota_, from.first);
  const bool helps = is_room && is_placed_after(wanting, missing, stopped, mark);
  from.lacks_places = is_room && !helps;
  for (const Lent& one : loan.lent) {
    quota_.take(queue_of(*one.from), one.pod->type, one.pod->gpus);
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

// Once they are stopped. What it gets is kept from all others; its cells are its own.
bool Session::is_placed_after(const Entry& wanting, Gpus missing,
                              const std::vector<Entry*>& stopped, std::size_t mark) {
  if (!is_confined_to_cells(wanting))
    return reserve_if_fits(wanting, missing / wanting.job->per_pod.gpus, mark);
  const bool is_inside = would_be_inside(wanting, missing, stopped);
  free_.undo_to(mark);
  return is_inside;
}

// Others of the queue, which come later, are not to take what is being made free for it.
void Session::keep_quota(const Entry& wanting, Gpus gpus) {
  if (wanting.guaranteed) return keep_quota(wanting, gpus, *wanting.guaranteed);
  const std::vector<TypeIndex>& types = types_for(wanting);
  if (types.empty()) return;
  const auto room = [&](TypeIndex type) { return quota_.room(queue_of(wanting), type); };
  keep_quota(wanting, gpus, *std::ranges::max_element(types, {}, room));
}

void Session::keep_quota(const Entry& wanting, Gpus gpus, TypeIndex type) {
  const QueueIndex queue = queue_of(wanting);
  if (!quota_.is_bounded(queue)) return;
  for (std::optional<QueueIndex> q = queue; q; q = problem_.parent_of(*q)) kept_[*q] += gpus;
  quota_.take(queue, type, gpus);
}

bool Session::may_lend(const Entry& from, const Entry& wanting) {
  return &from != &wanting && from.job->settled && from.now > 0 && from.add.empty();
}

// Whether what the other one gives back makes room for it, while that many lack.
bool Session::is_helped(const Entry& wanting, Gpus missing, const Entry& from) const {
  const QueueIndex queue = queue_of(wanting);
  return queue == queue_of(from) || std::ranges::any_of(types_for(wanting), [&](TypeIndex type) {
           return quota_.is_helped_by(queue, queue_of(from), type, missing);
         });
}

bool Session::may_stop_in_queue(const Entry& wanting, const Entry& victim) const {
  if (!victim.may_stop) return false;
  if (queue_of(wanting) == queue_of(victim)) return may_displace(wanting, victim);
  return !is_protected(victim, wanting, quota_) &&
         (may_displace(wanting, victim) || may_reclaim(wanting, victim, quota_));
}

// The widest of its queue and those above it that has not so much room.
QueueIndex Session::where_room_lacks(const Entry& wanting, Gpus missing) const {
  QueueIndex widest = queue_of(wanting);
  for (auto one = problem_.parent_of(widest); one; one = problem_.parent_of(*one)) {
    const auto lacks = [&](TypeIndex type) { return quota_.own_room(*one, type) < missing; };
    if (std::ranges::any_of(types_for(wanting), lacks)) widest = *one;
  }
  return widest;
}

// False: it has no right over any of those that hold GPUs there.
bool Session::may_stop_anybody(const Entry& wanting, QueueIndex among) const {
  if (!config_.preempt || holders_of_queue_[among].empty()) return false;
  if (is_inside_guarantee(wanting)) return true;
  switch (targets_.displaces) {
    case Displaces::kNobody:
      return false;
    case Displaces::kLowerPriority:
      return lowest_of_queue_[among] < wanting.job->priority;
    case Displaces::kLaterInOrder:
      return holders_of_queue_[among].back() > &wanting;
  }
  return false;
}

// What others of its queue can give at most.
Gpus Session::most_lent(const Entry& wanting, QueueIndex among) const {
  Gpus most = 0;
  for (const Entry* from : holders_of_queue_[among])
    if (may_lend(*from, wanting))
      most += may_stop_in_queue(wanting, *from)
                  ? from->now
                  : std::max<Gpus>(from->now - least_kept(*from, wanting), 0);
  return most;
}

bool Session::is_lent_where_it_helps(const Pod& pod, const Entry& wanting, const Loan& loan) {
  return loan.where == nullptr || is_of_use(*loan.where, wanting, node_of(pod));
}

void Session::lend(Entry& from, Pod& pod, Loan& loan) {
  free_.give_back(node_of(pod), from.job->per_pod);
  quota_.give_back(queue_of(from), pod.type, pod.gpus);
  pod.lent = true;
  loan.lent.push_back({&from, &pod});
}

// What the queue of the job lets it have, and those above it up to `widest`.
Gpus Session::room_within(const Entry& wanting, QueueIndex widest) const {
  const auto least = [&](const auto& of) {
    Gpus room = kNoLimit;
    for (std::optional<QueueIndex> q = queue_of(wanting); q; q = problem_.parent_of(*q)) {
      room = std::min(room, of(*q));
      if (*q == widest) break;
    }
    return room;
  };
  if (wanting.job->mix) return least([&](QueueIndex q) { return quota_.own_room(q); });
  Gpus best = 0;
  for (const TypeIndex type : types_for(wanting))
    best = std::max(best, least([&](QueueIndex q) { return quota_.own_room(q, type); }));
  return best;
}

// Its queue first, then those above it: what is given back there makes room in all of these.
template <class Lend>
void Session::for_levels(const Entry& wanting, const Loan& loan, const Lend& lend_in) const {
  for (QueueIndex level = queue_of(wanting);; level = *problem_.parent_of(level)) {
    lend_in(level);
    if (level == loan.among) return;
  }
}

// The last in order gives first.
void Session::lend_surplus(const Entry& wanting, Gpus missing, Loan& loan) {
  for_levels(wanting, loan, [&](QueueIndex level) {
    for (Entry* from : std::views::reverse(holders_of_queue_[level])) {
      if (room_within(wanting, level) >= missing) return;
      if (from->now > least_kept(*from, wanting) && may_lend(*from, wanting))
        lend_surplus_of(*from, wanting, missing, level, loan);
    }
  });
}

void Session::lend_surplus_of(Entry& from, const Entry& wanting, Gpus missing, QueueIndex level,
                              Loan& loan) {
  Gpus left = from.now;
  for (Pod& pod : from.pods) {
    if (pod.lent) {
      left -= pod.gpus;
      continue;
    }
    if (room_within(wanting, level) >= missing) return;
    const auto next = size_at_most(*from.job, left - pod.gpus);
    if (pod.in_cell || !next || *next != left - pod.gpus || *next < least_kept(from, wanting))
      return;
    if (is_protected(from, pod.type, wanting, quota_)) {
      if (!from.job->mix) return;
      continue;
    }
    if (!is_lent_where_it_helps(pod, wanting, loan)) continue;
    lend(from, pod, loan);
    loan.victims.emplace_back(&from, pod.ordinal);
    left = *next;
  }
}

// Jobs to stop, last in order first; who comes first is spared first.
std::vector<Session::Entry*> Session::lend_jobs(const Entry& wanting, Gpus missing, Loan& loan,
                                                const ServedFirst& first) {
  std::vector<Entry*> stopped;
  for_levels(wanting, loan, [&](QueueIndex level) {
    for (Entry* entry : std::views::reverse(holders_of_queue_[level])) {
      if (room_within(wanting, level) >= missing) return;
      if (!may_lend(*entry, wanting) || !may_stop_in_queue(wanting, *entry)) continue;
      if (std::ranges::find(stopped, entry) != stopped.end()) continue;
      if (std::ranges::find(first, entry) != first.end()) continue;
      const auto helps = [&](const Pod& pod) { return is_lent_where_it_helps(pod, wanting, loan); };
      if (std::ranges::none_of(entry->pods, helps)) continue;
      stopped.push_back(entry);
      for (Pod& pod : entry->pods)
        if (!pod.lent) lend(*entry, pod, loan);
    }
  });
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
