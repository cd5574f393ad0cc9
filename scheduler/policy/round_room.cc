// How room is made for a job below its minimum.
#include "common/words.h"
#include "scheduler/policy/round.h"
#include "scheduler/policy/sizes.h"

#include <algorithm>
#include <ranges>

#include <fmt/format.h>

namespace rubato::sched {

void Round::place_or_make_room(Entry& entry, Gpus wanted) {
  const Job& job = *entry.job;
  const std::int64_t pods = (wanted - entry.now) / job.per_pod.gpus;
  if (auto placed = place(job, pods, free_, room_of(job))) {
    take(entry, *placed);
    if (entry.reason.empty()) entry.reason = "there is room for it";
    return verdict(entry, Outcome::kPlaced, "Placed", "");
  }
  const Gpus fit = pods_that_fit(job, free_) * job.per_pod.gpus;
  std::string need =
      fmt::format("needs {}{}, {} {} free for it", counted(wanted - entry.now, "more GPU"),
                  job.one_node ? " on one node" : "", fit, agreeing(fit, "is", "are"));
  if (!job.narrowed.empty()) need += " (" + job.narrowed + ")";
  if (!job.avoid.empty())
    need += fmt::format(" (for now none on {}, where a pod of it was of no use)",
                        fmt::join(job.avoid, ", "));
  if (auto from = make_room(entry, pods)) {
    return verdict(entry, Outcome::kNotNow, "WaitingForRelease", need + "; waits for " + *from);
  }
  verdict(entry, Outcome::kNotNow, "InsufficientGPUs",
          need + "; the rest is held by jobs at their minimum of equal or higher priority");
}

// Finds the least disruption after which the job fits: pods already leaving, then surplus of
// elastic jobs (last in order first), then jobs of lower priority. What it settles on is kept
// from everybody else in this round, since it is free only when the old pods are gone.
std::optional<std::string> Round::make_room(Entry& wanting, std::int64_t pods) {
  Trial trial{free_, quota_, {}};
  for (const Entry& entry : entries_) {
    for (const Held& held : entry.job->held) {
      if (held.leaving && trial.free.nodes().contains(held.node))
        trial.free.give_back(held.node, entry.job->per_pod);
    }
  }
  if (reserve_if_fits(*wanting.job, pods, trial.free)) return "pods that are leaving";
  for (Entry& entry : std::views::reverse(entries_)) {
    if (&entry == &wanting || !entry.job->settled || entry.now <= entry.job->min) continue;
    if (shrink_until_it_fits(wanting, pods, entry, trial))
      return shrink_victims(trial.victims, wanting.job->name);
  }
  return config_.preempt ? preempt(wanting, pods, trial) : std::nullopt;
}

// Takes what `from` holds beyond its minimum, pod by pod; true once the job fits.
bool Round::shrink_until_it_fits(const Entry& wanting, std::int64_t pods, Entry& from,
                                 Trial& trial) {
  Gpus left = from.now;
  for (const Held* held : releasable(from)) {
    const auto next = size_at_most(*from.job, left - held->gpus);
    if (!next || *next != left - held->gpus) return false;
    if (is_protected(from, wanting, trial.quota)) return false;
    if (!admits(*wanting.job, *trial.free.nodes().at(held->node))) continue;
    trial.free.give_back(held->node, from.job->per_pod);
    trial.quota.give_back(from.job->queue, held->gpu_type, held->gpus);
    trial.victims.emplace_back(&from, held->ordinal);
    left = *next;
    if (reserve_if_fits(*wanting.job, pods, trial.free)) return true;
  }
  return false;
}

std::optional<std::string> Round::preempt(Entry& wanting, std::int64_t pods, Trial& trial) {
  std::vector<Entry*> stopped;
  for (Entry& entry : std::views::reverse(entries_)) {
    if (&entry == &wanting || !entry.job->settled || entry.now == 0) continue;
    if (!may_preempt(wanting, entry, trial.quota)) continue;
    stopped.push_back(&entry);
    for (const Held* held : releasable(entry)) {
      const bool counted = std::any_of(
          trial.victims.begin(), trial.victims.end(),
          [&](const auto& v) { return v.first == &entry && v.second == held->ordinal; });
      if (counted) continue;
      trial.free.give_back(held->node, entry.job->per_pod);
      trial.quota.give_back(entry.job->queue, held->gpu_type, held->gpus);
    }
    if (reserve_if_fits(*wanting.job, pods, trial.free))
      return stop_victims(stopped, trial.victims, wanting);
  }
  return std::nullopt;
}

std::string Round::stop_victims(const std::vector<Entry*>& stopped, Victims shrunk,
                                const Entry& wanting) {
  std::erase_if(shrunk, [&](const auto& v) {
    return std::find(stopped.begin(), stopped.end(), v.first) != stopped.end();
  });
  std::string names = shrink_victims(shrunk, wanting.job->name);
  for (Entry* victim : stopped) {
    for (const Held* held : releasable(*victim)) {
      quota_.give_back(victim->job->queue, held->gpu_type, held->gpus);
      victim->remove.push_back(held->ordinal);
    }
    victim->reason = fmt::format("preempted by {} ({})", wanting.job->name,
                                 why_preempted(*wanting.job, *victim->job));
    victim->now = 0;
    victim->preempted = true;
    victim->blocked = true;
    names += (names.empty() ? "" : ", ") + victim->job->name;
  }
  return names;
}

// Pods that count, highest ordinal first: the youngest leaves first. Pods placed in this very
// round have no ordinal yet and are left alone.
std::vector<const Held*> Round::releasable(const Entry& entry) {
  std::vector<const Held*> pods;
  for (const Held& held : entry.job->held) {
    const bool removed =
        std::find(entry.remove.begin(), entry.remove.end(), held.ordinal) != entry.remove.end();
    if (!held.lost && !held.leaving && !removed) pods.push_back(&held);
  }
  std::sort(pods.begin(), pods.end(),
            [](const Held* a, const Held* b) { return a->ordinal > b->ordinal; });
  return pods;
}

std::string Round::shrink_victims(const Victims& victims, const std::string& for_whom) {
  std::vector<std::string> names;
  for (const auto& [entry, ordinal] : victims) {
    entry->remove.push_back(ordinal);
    entry->now -= entry->job->per_pod.gpus;
    quota_.give_back(entry->job->queue, type_of(*entry), entry->job->per_pod.gpus);
    entry->reason = fmt::format("gives GPUs to {}, which is below its minimum", for_whom);
    if (std::ranges::find(names, entry->job->name) == names.end())
      names.push_back(entry->job->name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool Round::reserve_if_fits(const Job& job, std::int64_t pods, const FreeMap& trial) {
  FreeMap copy = trial;
  const auto placed = place(job, pods, copy, room_of(job));
  if (!placed) return false;
  for (const Placement& placement : *placed) {
    const Resources left = free_.free().at(placement.node);
    Resources all = left;
    all.raise_to_zero();
    free_.take(placement.node, all);
  }
  return true;
}

// Held inside the guarantee of its queue, which another queue's job wants to borrow.
bool Round::is_protected(const Entry& held, const Entry& wanting, const QuotaBook& quota) {
  return held.job->queue != wanting.job->queue &&
         quota.is_guaranteed(held.job->queue, type_of(held), 0);
}

bool Round::has_leave_to_preempt(const Entry& wanting, const Entry& victim) const {
  const auto queue = state_.queues.find(wanting.job->queue);
  if (!wanting.job->may_preempt || queue == state_.queues.end()) return false;
  switch (queue->second.preempts) {
    case Preempts::kNobody:
      return false;
    case Preempts::kOwnQueue:
      return victim.job->queue == wanting.job->queue;
    case Preempts::kAnyQueue:
      return true;
  }
  return false;
}

bool Round::may_preempt(const Entry& wanting, const Entry& victim, const QuotaBook& quota) const {
  if (is_protected(victim, wanting, quota)) return false;
  if (victim.job->priority < wanting.job->priority && has_leave_to_preempt(wanting, victim))
    return true;
  return victim.job->queue != wanting.job->queue && is_inside_guarantee(wanting) &&
         quota.is_borrowing(victim.job->queue, type_of(victim));
}

std::string Round::why_preempted(const Job& by, const Job& victim) {
  if (victim.priority < by.priority)
    return fmt::format("priority {} over {}", by.priority, victim.priority);
  return fmt::format("queue \"{}\" takes back what it is guaranteed", by.queue);
}

}  // namespace rubato::sched
