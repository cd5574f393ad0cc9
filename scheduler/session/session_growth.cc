// Targets::stops_for_growth: who stops so that others come to their size.
#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

namespace rubato::sched {

// What it loses, or gains, is known.
bool Session::may_give_way(const Entry& entry) const {
  return entry.job->remaining_ms.has_value() && !cells_.exist();
}

// Not one inside a guarantee: it would start again before anybody grows.
bool Session::may_stop_for_growth(const Entry& entry) const {
  if (targets_.sizes[entry.index.value] > 0 || !may_give_way(entry)) return false;
  const bool is_whole = entry.now > 0 && entry.add.empty() && entry.remove.empty();
  return is_whole && !is_inside_guarantee(entry);
}

// The first in order grows first.
void Session::stop_for_growth() {
  for (Entry& entry : entries_) {
    const bool is_held = entry.job->started && entry.add.empty() && entry.remove.empty();
    if (is_held && may_give_way(entry) && may_grow(entry) && !waits_for_places(entry))
      stop_for(entry);
  }
}

// Nobody, where it fits without, or does not come to its size though others stop. What leaves is
// kept for it in this round; in the next one nobody starts with it who is to have nothing.
void Session::stop_for(Entry& grower) {
  const Gpus missing = targets_.sizes[grower.index.value] - grower.now;
  const auto target = size_at_most(*grower.job, grower.now + std::min(missing, room_for(grower)));
  if (!target || *target - grower.now < grower.job->per_pod.gpus) return;
  const std::int64_t pods = (*target - grower.now) / grower.job->per_pod.gpus;
  if (fits(grower, pods)) return;
  const std::size_t mark = free_.mark();
  const QuotaBook before = quota_;
  Trial trial = trial_for(grower);
  trial.reclaims = false;
  give_back_what_leaves(types_of_use(grower, trial.bound.type));
  if (reserve_if_fits(grower, pods, mark)) {
    grower.waits_to_grow = true;
    return;
  }
  std::vector<Entry*> among = who_may_give(grower, trial);
  std::erase_if(among, [&](const Entry* entry) { return !may_stop_for_growth(*entry); });
  const auto stopped =
      config_.preempt && !among.empty() ? preempt(grower, pods, trial, among) : std::nullopt;
  if (stopped) {
    CHECK(reserve_if_fits(grower, pods, mark));
    grower.waits_to_grow = true;
    quota_ = before;
    stop_victims(*stopped, {}, grower);
    return;
  }
  quota_ = before;
  free_.undo_to(mark);
}

// Not while others are about to take what is free.
void Session::start_with_what_is_left() {
  for (Entry& entry : entries_) {
    const bool waits =
        verdicts_[entry.index.value].reason == Reason::kInsufficientGpus && !entry.preempted;
    if (!waits || !is_left_out(entry) || !keep_to_guarantee(entry)) continue;
    const auto size = size_at_least(*entry.job, 0);
    if (!size || room_for(entry) < *size || !place_up_to(entry, *size)) continue;
    entry.cause = RoomForMinimum{};
    entry.blocked = false;
    verdict(entry, {});
  }
}

}  // namespace rubato::sched
