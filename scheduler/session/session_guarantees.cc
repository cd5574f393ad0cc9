// Who is served first by a guarantee, and whom it is therefore of no use to stop.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <tuple>

namespace rubato::sched {

// Those that it is of no use to stop for the one that wants their GPUs, by what the queues hold
// once they are: they, or others that wait, would be served before it. True: there are some.
bool Session::note_served_before(const std::vector<Entry*>& stopped, const Entry& wanting,
                                 const QuotaBook& after, ServedFirst& first) const {
  const Gpus missing = size_at_least(*wanting.job, wanting.now).value_or(wanting.now) - wanting.now;
  if (cells_.exist() && note_inside_cells(stopped, wanting, missing, first)) return true;
  if (!after.has_guarantees()) return false;
  const std::size_t rank = guarantee_rank(wanting, missing, after);
  return note_served_first(stopped, wanting, rank, after, first) ||
         note_letting_in(stopped, wanting, rank, after, first);
}

// Those that are inside a guarantee once they are stopped, as the one that wants their GPUs is not,
// or comes later: they would start again before it does. True: there are some.
bool Session::note_served_first(const std::vector<Entry*>& stopped, const Entry& wanting,
                                std::size_t rank, const QuotaBook& quota,
                                ServedFirst& first) const {
  const std::size_t before = first.size();
  for (const Entry* entry : stopped) {
    const std::size_t its_own =
        guarantee_rank(*entry, size_at_least(*entry->job, 0).value_or(0), quota);
    if (its_own > rank || (its_own == rank && rank > 0 && entry < &wanting)) first.push_back(entry);
  }
  return first.size() > before;
}

// Those whose stopping brings their queue so far below its guarantee that another job comes inside
// it: that would be served before the one that wants their GPUs by its place in the order, and take
// them. True: there are some.
bool Session::note_letting_in(const std::vector<Entry*>& stopped, const Entry& wanting,
                              std::size_t rank, const QuotaBook& after, ServedFirst& first) const {
  std::map<QueueIndex, std::vector<const Entry*>> displaced;  // by the widest of their queues
  for (const Entry* entry : stopped)
    if (may_displace(wanting, *entry)) displaced[widest_queue_of(*entry)].push_back(entry);
  if (displaced.empty()) return false;
  QuotaBook before = after;
  for (const Entry* entry : stopped)
    for (const Pod& pod : entry->pods) before.take(queue_of(*entry), pod.type, pod.gpus);
  const std::size_t known = first.size();
  std::vector<char> seen(kinds_of_waiting_, 0);
  for (const auto& [other, size, kind] : waiting_) {
    if (other == &wanting || other->now > 0 || seen[kind] != 0) continue;
    seen[kind] = 1;  // others of its kind come later, and are of the same rank
    const auto found = displaced.find(widest_queue_of(*other));
    if (found == displaced.end()) continue;
    const std::size_t its_own = guarantee_rank(*other, size, after);
    if (its_own < rank || (its_own == rank && (rank == 0 || other > &wanting))) continue;
    if (guarantee_rank(*other, size, before) >= its_own) continue;
    for (const Entry* entry : found->second)
      if (std::ranges::find(first, entry) == first.end()) first.push_back(entry);
  }
  return first.size() > known;
}

// Who may come inside a guarantee.
void Session::list_waiting() {
  std::map<std::tuple<QueueIndex, GroupIndex, Gpus>, std::size_t> kinds;
  for (const Entry& entry : entries_) {
    const auto size = size_at_least(*entry.job, 0);
    if (entry.now > 0 || !size || !problem_.takes_part(entry.index)) continue;
    if (!may_borrow(entry) && types_guaranteed(entry).empty()) continue;
    const auto kind = std::tuple(queue_of(entry), problem_.group_of(entry.index), *size);
    waiting_.push_back({&entry, *size, kinds.try_emplace(kind, kinds.size()).first->second});
  }
  kinds_of_waiting_ = kinds.size();
}

// Jobs that are not preemptible hold together, with their minimums, what their queues are
// guaranteed at most, where anything is guaranteed: so no guarantee waits for them. What those that
// may be stopped hold beside them does not count. Who has cells and nothing else borrows nothing.
bool Session::may_borrow(const Entry& entry) const {
  const Job& job = *entry.job;
  if (job.preemptible || job.started || is_confined_to_cells(entry)) return true;
  return !lasting_.has_guarantees() && !cells_.exist();
}

// Of which it may start.
std::vector<TypeIndex> Session::types_guaranteed(const Entry& entry) const {
  return sched::types_guaranteed(lasting_, problem_, entry.index, types_for(entry));
}

// False: there is no room for it there. Where not all types are guaranteed it gets one that is,
// whatever the policy says.
bool Session::keep_to_guarantee(Entry& entry) {
  if (may_borrow(entry)) return true;
  const std::vector<TypeIndex> types = types_guaranteed(entry);
  if (types.empty()) return false;
  if (types.size() == types_for(entry).size()) return true;
  entry.guaranteed = fixed_type(entry);
  if (!entry.guaranteed || std::ranges::find(types, *entry.guaranteed) == types.end())
    entry.guaranteed =
        *std::ranges::max_element(types, {}, [&](TypeIndex type) { return free_.gpus(type); });
  return true;
}

// Those of its pods that would be the last to leave.
void Session::count_lasting_held(const Entry& entry) {
  if (entry.job->preemptible) return;
  Gpus left = entry.min;
  for (const Pod& pod : std::views::reverse(entry.pods)) {
    if (left <= 0) return;
    lasting_.take(queue_of(entry), pod.type, pod.gpus);
    left -= pod.gpus;
  }
}

// Room is being made for it.
void Session::count_lasting_promised(const Entry& entry) {
  if (may_borrow(entry)) return;
  count_lasting_started(entry, entry.guaranteed.value_or(types_guaranteed(entry).front()));
}

void Session::count_lasting_started(const Entry& entry, TypeIndex type) {
  if (entry.job->preemptible || entry.job->started) return;
  lasting_.take(queue_of(entry), type, size_at_least(*entry.job, 0).value_or(entry.min));
}

QueueIndex Session::widest_queue_of(const Entry& entry) const {
  QueueIndex widest = queue_of(entry);
  while (const auto parent = problem_.parent_of(widest)) widest = *parent;
  return widest;
}

// The level of the queue that guarantees it so many more: who has a higher one is served first. 0:
// none does.
std::size_t Session::guarantee_rank(const Entry& entry, Gpus more, const QuotaBook& quota) const {
  std::size_t rank = 0;
  for (const TypeIndex type : problem_.group(entry.index).types)
    if (const auto queue = quota.guarantor(queue_of(entry), type, more))
      rank = std::max(rank, quota.level_of(*queue));
  return rank;
}

}  // namespace rubato::sched
