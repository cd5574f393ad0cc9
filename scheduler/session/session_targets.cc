// Where a policy says how many GPUs each job should have: who gives some back, and where one
// starts.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <ranges>

namespace rubato::sched {

// Only what somebody below its target can use, and is not free or about to be. The last in order
// gives first.
void Session::shrink_to_targets() {
  std::vector<Wanting> wanting = below_targets();
  for (Entry& entry : std::views::reverse(entries_)) {
    if (wanting.empty()) return;
    shrink_for(wanting, entry);
  }
}

// At once, for each change stalls the job; to less only where that is faster, too.
void Session::grow_to_targets() {
  for (Entry& entry : entries_) {
    const auto target = size_at_most(*entry.job, targets_.sizes[entry.index.value]);
    if (!target || *target <= entry.now || !may_grow(entry) || entry.waits_to_grow) continue;
    if (grow_to(entry, *target)) continue;
    if (waits_for_places(entry)) continue;
    const Gpus fit = gpus_that_fit(entry);
    const Throughput speed = speed_of(entry);
    const double now = speed.at(entry.now);
    const auto is_worth_it = [&](Gpus to) {
      return speed.at(to) - now >= config_.min_relative_gain * now;
    };
    auto less = size_at_most(*entry.job, std::min(entry.now + fit, *target));
    while (less && *less > entry.now && !is_worth_it(*less))
      less = size_at_most(*entry.job, *less - 1);
    if (less && *less > entry.now) grow_to(entry, *less);
  }
}

// Less what is free: that goes to the first in order.
std::vector<Session::Wanting> Session::below_targets() const {
  Gpus free = 0;
  for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
    if (problem_.node(n).schedulable) free += free_[n].gpus;
  for (const Entry& entry : entries_)
    for (const Held& held : entry.job->held)
      if (held.leaving) free += held.gpus;
  std::vector<Wanting> wanting;
  for (const Entry& entry : entries_) {
    const Gpus missing = targets_.sizes[entry.index.value] - entry.now;
    if (missing <= 0 || !may_get_more(entry)) continue;
    const Gpus allowed = std::min(missing, room_for(entry));
    const Gpus covered = std::min(allowed, free);
    free -= covered;
    if (missing > covered) wanting.push_back({&entry, allowed - covered, missing - allowed});
  }
  return wanting;
}

bool Session::may_get_more(const Entry& entry) const {
  if (why_kept_out(entry).outcome != Outcome::kPlaced || entry.job->gets_spare_only()) return false;
  if (!has_queue(entry)) return false;
  return !entry.job->started || (entry.job->settled && !entry.job->cooling);
}

void Session::shrink_for(std::vector<Wanting>& wanting, Entry& from) {
  const Job& job = *from.job;
  const Gpus target = std::max(targets_.sizes[from.index.value], job.min);
  if (from.now <= target || !job.settled || !from.remove.empty()) return;
  Gpus to = from.now;
  std::vector<Wanting> still = wanting;
  std::vector<const Entry*> by_room;
  bool by_quota = false;
  for (const Pod& pod : from.pods) {
    const auto next = size_at_most(job, to - 1);
    if (!next || *next < target) break;
    Wanting* one = who_could_use(still, from, pod);
    if (one == nullptr) break;
    const bool is_own = is_helped_in_queue(*one, from);
    by_quota = by_quota || is_own;
    if (!is_own && std::ranges::find(by_room, one->entry) == by_room.end())
      by_room.push_back(one->entry);
    (is_own ? one->in_queue : one->missing) -= to - *next;
    if (one->missing <= 0 && one->in_queue <= 0) still.erase(still.begin() + (one - still.data()));
    to = *next;
  }
  if (to == from.now) return;
  const auto count = static_cast<std::size_t>((from.now - to) / job.per_pod.gpus);
  if (!by_quota && !is_of_use_to(by_room, std::span(from.pods).first(count), job.per_pod)) return;
  wanting = std::move(still);
  const std::vector<Pod> before = from.pods;
  shrink_to(from, to);
  count_from_anybody(from, std::span(before).first(before.size() - from.pods.size()));
  from.cause = WorthMoreElsewhere{};
  givers_.push_back({&from});
}

// Whether one of them comes to have more by these pods, beside what is free or about to be: who
// waits its least, who runs a pod. GPUs alone do not tell: theirs may be larger pods, or need cores
// and memory that are not there.
bool Session::is_of_use_to(const std::vector<const Entry*>& wanting, std::span<const Pod> pods,
                           const Resources& per_pod) {
  if (++use_checks_ > kUseChecksMost) return true;
  const std::size_t mark = free_.mark();
  give_back_what_leaves(ByType(problem_.count_types(), 1));
  std::vector<Gpus> before;
  before.reserve(wanting.size());
  for (const Entry* entry : wanting) before.push_back(gpus_that_fit(*entry));
  for (const Pod& pod : pods) free_.give_back(node_of(pod), per_pod);
  bool is_of_use = false;
  for (std::size_t i = 0; i < wanting.size() && !is_of_use; ++i) {
    const Gpus after = gpus_that_fit(*wanting[i]);
    const auto least = wanting[i]->now == 0 ? size_at_least(*wanting[i]->job, 0) : std::nullopt;
    is_of_use = after > before[i] && after >= least.value_or(0);
  }
  free_.undo_to(mark);
  return is_of_use;
}

bool Session::is_helped_in_queue(const Wanting& one, const Entry& from) const {
  return one.in_queue > 0 && is_helped(*one.entry, room_for(*one.entry) + one.in_queue, from);
}

// Null: nobody.
Session::Wanting* Session::who_could_use(std::vector<Wanting>& wanting, const Entry& from,
                                         const Pod& pod) const {
  if (!pod.node) return nullptr;
  const auto can = [&](const Wanting& one) {
    if (one.missing <= 0 && !is_helped_in_queue(one, from)) return false;
    const auto bound = type_of(*one.entry);
    return admits(*one.entry->job, problem_.node(*pod.node)) &&
           (!bound || one.entry->job->mix || *bound == problem_.type_of(*pod.node));
  };
  const auto found = std::ranges::find_if(wanting, can);
  return found == wanting.end() ? nullptr : &*found;
}

// Targets::few_nodes_yield
bool Session::yields(const Entry& entry) const {
  const Job& job = *entry.job;
  const bool is_of_few = job.eligible && job.eligible->size() < problem_.end_of_nodes().value;
  return targets_.few_nodes_yield && (is_of_few || !job.avoid.empty() || is_confined(job));
}

// By what the policy says: with more than its minimum.
bool Session::is_to_start_larger(const Entry& entry) const {
  if (targets_.starts.empty() || entry.job->started) return false;
  const auto least = size_at_least(*entry.job, 0);
  return least && targets_.starts[entry.index.value] > *least;
}

// Those that wait for more than they need, or on few nodes, and for nobody who gives them anything.
// Not while room is being made for others: they may be about to take what is free.
void Session::start_with_what_fits() {
  const bool is_room_made = std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.preempted || verdicts_[entry.index.value].reason == Reason::kWaitingForRelease;
  });
  if (is_room_made) return;
  for (Entry& entry : entries_) {
    const bool waits =
        entry.now == 0 && verdicts_[entry.index.value].reason == Reason::kInsufficientGpus;
    if (!waits || !(yields(entry) || is_to_start_larger(entry))) continue;
    if (!keep_to_guarantee(entry)) continue;  // others of its kind have started
    entry.of_any_type = yields(entry);
    const auto most = least_wanted(entry);
    const auto size =
        most ? size_at_most(*entry.job, std::min(gpus_that_fit(entry), *most)) : std::nullopt;
    if (size && place_up_to(entry, *size)) {
      entry.cause = RoomForMinimum{};
      entry.blocked = false;
      verdict(entry, {});
    } else {
      entry.of_any_type = false;
    }
  }
}

bool Session::is_to_move(const Entry& entry) const {
  const auto to = fixed_type(entry);
  if (!to || !entry.may_stop || !has_queue(entry)) return false;
  const bool is_whole = entry.now >= entry.job->min && entry.job->settled;
  return is_whole && entry.remove.empty() && *to != type_of(entry);
}

// False: there is no room, and none can be made. Else that is kept for it, and its pods leave, for
// others to wait for.
bool Session::move_to_type(Entry& entry, Gpus wanted) {
  const std::int64_t pods = wanted / entry.job->per_pod.gpus;
  for (const Pod& pod : entry.pods) quota_.give_back(queue_of(entry), pod.type, pod.gpus);
  entry.moving = true;
  std::optional<std::vector<std::string>> from(std::in_place);
  if (!placer_.place(entry.index, pods, bound_of(entry))) from = make_room(entry, pods);
  if (!from) {
    entry.moving = false;
    for (const Pod& pod : entry.pods) quota_.take(queue_of(entry), pod.type, pod.gpus);
    return false;
  }
  for (const Pod& pod : entry.pods) entry.remove.push_back(pod.ordinal);
  count_from_anybody(entry, entry.pods);
  entry.pods.clear();
  givers_.push_back({&entry});
  const TypeIndex type = *fixed_type(entry);
  keep_quota(entry, wanted, type);
  entry.cause = ChangesType{problem_.name(type)};
  entry.now = 0;
  entry.preempted = true;
  verdict(entry, {.outcome = Outcome::kNotNow,
                  .reason = Reason::kWaitingForRelease,
                  .needed = wanted,
                  .waits_for = std::move(*from)});
  return true;
}

bool Session::is_left_out(const Entry& entry) const {
  if (entry.now > 0 || !(targets_.sizes_hold || targets_.stops_for_growth)) return false;
  if (targets_.sizes[entry.index.value] > 0 || is_inside_guarantee(entry)) return false;
  return targets_.sizes_hold || may_give_way(entry);
}

// A job that starts gets at once what the policy wants it to have, if that is free: together, for
// pods that come later find places elsewhere.
bool Session::start_at_target(Entry& entry, Gpus wanted) {
  if (targets_.sizes.empty() || entry.job->started) return false;
  const auto target = size_at_most(*entry.job, targets_.sizes[entry.index.value]);
  if (!target || *target <= wanted || room_for(entry) < *target - entry.now) return false;
  return place_up_to(entry, *target);
}

}  // namespace rubato::sched
