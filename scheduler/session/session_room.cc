// How room is made for a job below its minimum.
#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <set>

namespace rubato::sched {
namespace {

// Of each kind, and nothing below zero.
Resources least_of(const Resources& one, const Resources& other) {
  Resources least{.gpus = std::min(one.gpus, other.gpus),
                  .cpu = std::min(one.cpu, other.cpu),
                  .memory = std::min(one.memory, other.memory)};
  std::ranges::transform(one.others, other.others, least.others.begin(), std::ranges::min);
  least.raise_to_zero();
  return least;
}

}  // namespace

void Session::place_or_make_room(Entry& entry, Gpus wanted) {
  if (is_confined_to_cells(entry)) return verdict(entry, why_not_in_cells(entry, wanted));
  const Gpus per_pod = entry.job->per_pod.gpus;
  const std::int64_t pods = (wanted - entry.now) / per_pod;
  const std::int64_t fit = count_fitting(entry);
  if (fit >= pods && (start_at_target(entry, wanted) || place_up_to(entry, wanted))) {
    if (!entry.cause) entry.cause = RoomForMinimum{};
    return verdict(entry, {});
  }
  if (become_guest(entry, wanted)) return verdict(entry, {});
  Verdict no{.outcome = Outcome::kNotNow,
             .reason = Reason::kInsufficientGpus,
             .needed = wanted - entry.now,
             .available = fit * per_pod};
  if (waits_for_places(entry)) {
    no.reason = Reason::kWaitingForRelease;
    return verdict(entry, std::move(no));
  }
  if (!entry.job->gets_spare_only() && may_be_helped(entry, pods * per_pod)) {
    if (auto from = make_room(entry, pods)) {
      no.reason = Reason::kWaitingForRelease;
      no.waits_for = std::move(*from);
      keep_quota(entry, pods * per_pod);
      count_lasting_promised(entry);
    }
  }
  verdict(entry, std::move(no));
}

std::int64_t Session::count_fitting(const Entry& entry) {
  return placer_.pods_that_fit(entry.index, bound_of(entry));
}

// As far as its queue lets it.
Gpus Session::gpus_that_fit(const Entry& entry) {
  return std::min(count_fitting(entry) * entry.job->per_pod.gpus, room_for(entry));
}

// False: whatever others give, it would not be enough.
bool Session::may_be_helped(const Entry& wanting, Gpus wanted) const {
  const auto guarantor = guarantor_of(wanting);
  Gpus all = 0;
  const auto is_enough = [&](TypeIndex type) {
    const Gpus beside = free_.gpus(type) + from_anybody_[type];
    const Gpus given =
        from_anybody_[type] + most_displaced(wanting, type, guarantor, wanted - beside);
    all += free_.gpus(type) + given;
    return given > 0 && free_.gpus(type) + given >= wanted;
  };
  const auto type = wanting.guaranteed ? wanting.guaranteed : fixed_type(wanting);
  if (type) return is_enough(*type);
  if (std::ranges::any_of(types_for(wanting), is_enough)) return true;
  return wanting.job->mix && all >= wanted;
}

// What it could get of a type by stopping jobs, at most, by what each queue holds of it and whether
// the guarantees let it have that; inside the guarantee of `guarantor`, all of queues that are no
// part of that one; and without leave to preempt nothing else. From `enough` on it is not counted.
Gpus Session::most_displaced(const Entry& wanting, TypeIndex type,
                             std::optional<QueueIndex> guarantor, Gpus enough) const {
  if (!config_.preempt) return 0;
  Gpus most = held_mixed_[type];
  const QueueIndex own = queue_of(wanting);
  const bool displaces = targets_.displaces != Displaces::kNobody;
  const auto behind = static_cast<std::size_t>(&wanting - entries_.data()) + 1;
  const auto is_behind = [&](const HeldBehind& one) {
    return !is_by_order_ || one.entry >= behind;
  };
  for (const auto& [queue, held] : held_by_queue_[type]) {
    if (most > 0 && most >= enough) return most;
    Gpus gpus = 0;
    if (guarantor && !quota_.is_part_of(queue, *guarantor))
      gpus = held.back().gpus;
    else if (displaces && is_behind(held.front()) && has_leave_to_preempt(wanting, queue))
      gpus = std::prev(std::ranges::partition_point(held, is_behind))->gpus;
    if (gpus > 0 && !is_guaranteed(queue, type, own, quota_)) most += gpus;
  }
  return most;
}

// What is left to it by those whom it is below their minimum for.
Gpus Session::least_kept(const Entry& entry) const {
  const Gpus target = targets_.sizes_are_kept ? targets_.sizes[entry.index.value] : 0;
  return std::max(entry.job->min, target);
}

// … to one that it is above its minimum for: what it has borrowed it gives back.
Gpus Session::least_kept(const Entry& entry, const Entry& wanting) const {
  const bool keeps_more = targets_.sizes_are_kept && !may_reclaim(wanting, entry, quota_);
  return keeps_more ? least_kept(entry) : entry.job->min;
}

// Finds the least disruption after which the job fits: pods already leaving, then surplus of
// elastic jobs (last in order first), then jobs that it may displace. What it settles on is kept
// from everybody else in this round, since it is free only when the old pods are gone.
std::optional<std::vector<std::string>> Session::make_room(Entry& wanting, std::int64_t pods) {
  for (const auto& domain : domains_to_clear(wanting, pods)) {
    wanting.only = domain;
    auto from = make_room_there(wanting, pods);
    wanting.only.reset();
    if (from) return from;
  }
  return std::nullopt;
}

// Where it needs a whole domain: those in which enough is free, leaves, or can be taken, the one
// first that least must be taken of. None: no matter where.
std::vector<std::optional<DomainIndex>> Session::domains_to_clear(const Entry& wanting,
                                                                  std::int64_t pods) {
  if (!wanting.job->needs_domain()) return {std::nullopt};
  const Trial trial = trial_for(wanting);
  if (trial.bound.domain) return {std::nullopt};
  std::map<DomainIndex, Gpus> free;
  const std::size_t mark = free_.mark();
  give_back_what_leaves(types_of_use(wanting, std::nullopt));
  for (const NodeIndex n : problem_.group(wanting.index).admitted)
    free[*problem_.domain_of(trial.level, n)] += std::max<Gpus>(free_[n].gpus, 0);
  free_.undo_to(mark);
  std::map<DomainIndex, Gpus> most = free;
  for (const Entry* entry : holders_) {
    if (entry == &wanting || !entry->job->settled || !entry->add.empty()) continue;
    const bool stops = may_preempt(wanting, *entry, trial);
    for (Gpus left = entry->now; const Pod& pod : entry->pods) {
      left -= pod.gpus;
      if (!stops && left < least_kept(*entry, wanting)) break;
      if (is_of_use(trial, wanting, node_of(pod)))
        most[*problem_.domain_of(trial.level, node_of(pod))] += entry->job->per_pod.gpus;
    }
  }
  std::vector<std::optional<DomainIndex>> domains;
  for (const auto& [domain, gpus] : most)
    if (gpus >= pods * wanting.job->per_pod.gpus) domains.emplace_back(domain);
  std::ranges::stable_sort(domains, std::greater{}, [&](const auto& one) { return free[*one]; });
  return domains;
}

Session::Trial Session::trial_for(const Entry& wanting) const {
  const auto& topology = wanting.job->topology;
  const std::size_t level = topology ? problem_.level_named(topology->level) : 0;
  return {quota_, bound_of(wanting), level, is_inside_guarantee(wanting)};
}

// Whether room on that node helps the job.
bool Session::is_of_use(const Trial& trial, const Entry& wanting, NodeIndex node) {
  const auto& [type, on, domain, is_nowhere, used, preferred] = trial.bound;
  if (is_nowhere || (type && problem_.type_of(node) != *type) || (on && node != *on)) return false;
  if (!placer_.may_get(wanting.index, node)) return false;
  return !domain || problem_.domain_of(trial.level, node) == domain;
}

// What others would give counts for its queue, too, while it is tried.
std::optional<std::vector<std::string>> Session::make_room_there(Entry& wanting,
                                                                 std::int64_t pods) {
  const std::size_t mark = free_.mark();
  Trial trial = trial_for(wanting);
  give_back_what_leaves(types_of_use(wanting, trial.bound.type));
  if (reserve_if_fits(wanting, pods, mark)) return std::vector<std::string>{};
  const QuotaBook before = quota_;
  const std::optional<std::vector<Entry*>> stopped = who_gives(wanting, pods, trial);
  if (stopped) {
    spare_surplus(wanting, pods, *stopped, trial.victims);
    CHECK(reserve_if_fits(wanting, pods, mark));
    quota_ = before;
    return stop_victims(*stopped, std::move(trial.victims), wanting);
  }
  quota_ = before;
  free_.undo_to(mark);
  for (const auto& [entry, ordinal] : trial.victims)
    for (Pod& pod : entry->pods) pod.lent = false;
  return std::nullopt;
}

// The jobs to stop, so that it fits, beside what trial.victims give; none: it does not.
std::optional<std::vector<Session::Entry*>> Session::who_gives(const Entry& wanting,
                                                               std::int64_t pods, Trial& trial) {
  const std::vector<Entry*> among = who_may_give(wanting, trial);
  for (Entry* entry : among) {
    if (entry->now <= entry->min) continue;
    if (shrink_until_it_fits(wanting, pods, *entry, trial)) return std::vector<Entry*>{};
  }
  return config_.preempt ? preempt(wanting, pods, trial, among) : std::nullopt;
}

// Not zero: of this type.
Session::ByType Session::types_of_use(const Entry& wanting, std::optional<TypeIndex> only) const {
  ByType of_use(problem_.count_types(), 0);
  for (const TypeIndex type : problem_.group(wanting.index).types)
    of_use[type] = !only || *only == type ? 1 : 0;
  return of_use;
}

// Settled jobs, the last in order first, without those that can give nothing of use: by the type of
// what they hold, and by what their queue is guaranteed of it. (What others give leaves that as it
// is, or adds to it.) Of many jobs most are left out, and here none of them is looked up.
std::vector<Session::Entry*> Session::who_may_give(const Entry& wanting, const Trial& trial) const {
  const QueueIndex own = queue_of(wanting);
  const ByType of_use = types_of_use(wanting, trial.bound.type);
  std::vector<Entry*> among;
  among.reserve(holders_.size());
  for (const auto& [entry, queue] : settled_mixed_) among.push_back(entry);
  for (TypeIndex type; type < of_use.end_key(); ++type) {
    if (of_use[type] == 0 || settled_[type].empty()) continue;
    const std::ptrdiff_t before = std::ssize(among);
    std::vector<std::optional<bool>> is_kept(problem_.count_queues());
    for (const auto& [entry, queue] : settled_[type]) {
      auto& kept = is_kept[queue.value];
      if (!kept) kept = !cells_.exist() && is_guaranteed(queue, type, own, trial.quota);
      if (!*kept) among.push_back(entry);
    }
    std::ranges::inplace_merge(among, among.begin() + before);
  }
  std::erase(among, &wanting);
  std::ranges::reverse(among);
  return among;
}

// Whether its pods leave for nobody yet.
bool Session::gives(const Entry& giver) {
  return giver.moving || std::holds_alternative<WorthMoreElsewhere>(*giver.cause) ||
         std::holds_alternative<ChangesNodes>(*giver.cause);
}

void Session::note_what_leaves(Giver& giver) const {
  const Entry& entry = *giver.entry;
  if (giver.removed == entry.remove.size()) return;
  giver.removed = entry.remove.size();
  giver.leaves.clear();
  const std::vector<Held>& held = entry.job->held;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const auto node = problem_.held_at(entry.index)[i].node;
    if (!node || held[i].leaving ||
        std::ranges::find(entry.remove, held[i].ordinal) == entry.remove.end())
      continue;
    const auto known =
        std::ranges::find(giver.leaves, *node, &std::pair<NodeIndex, Resources>::first);
    if (known == giver.leaves.end())
      giver.leaves.emplace_back(*node, entry.job->per_pod);
    else
      known->second += entry.job->per_pod;
  }
}

// Pods that are leaving already, and what jobs give back to come to their size.
template <class Take>
void Session::for_each_that_leaves(const Take& take) {
  for (const auto& [node, per_pod] : leaving_) take(node, *per_pod);
  for (Giver& giver : givers_) {
    if (!gives(*giver.entry)) continue;
    note_what_leaves(giver);
    for (const auto& [node, what] : giver.leaves) take(node, what);
  }
}

// … which nobody is promised yet, on nodes of these types.
void Session::give_back_what_leaves(const ByType& of_use) {
  const auto is_of_use = [&](NodeIndex node) { return of_use[problem_.type_of(node)] != 0; };
  for_each_that_leaves([&](NodeIndex node, const Resources& what) {
    if (is_of_use(node)) free_.give_back(node, what);
  });
  for (const auto& [node, what] : promised_)
    if (is_of_use(node)) free_.take(node, least_of(what, free_[node]));
}

// To who has just been placed there: what is left of these nodes' leaving pods after it, and no
// more, is offered to others.
void Session::promise_what_leaves(const std::set<NodeIndex>& nodes) {
  std::map<NodeIndex, Resources> leaves;
  for_each_that_leaves([&](NodeIndex node, const Resources& what) { leaves[node] += what; });
  for (const NodeIndex node : nodes) {
    const auto all = leaves.find(node);
    if (all == leaves.end()) continue;
    Resources& promised = promised_[node];
    Resources offered = all->second;
    offered -= promised;
    promised = all->second;
    promised -= least_of(offered, free_[node]);
  }
}

void Session::give_back(const Entry& from, const Pod& pod, Trial& trial) {
  free_.give_back(node_of(pod), from.job->per_pod);
  for (QuotaBook* quota : {&quota_, &trial.quota})
    quota->give_back(queue_of(from), pod.type, pod.gpus);
}

// Takes what `from` holds beyond its minimum, pod by pod; true once the job fits.
bool Session::shrink_until_it_fits(const Entry& wanting, std::int64_t pods, Entry& from,
                                   Trial& trial) {
  const auto helps = [&](const Pod& pod) { return is_of_use(trial, wanting, node_of(pod)); };
  if (std::ranges::none_of(from.pods, helps)) return false;
  Gpus left = from.now;
  const Gpus least = least_kept(from, wanting);
  for (Pod& pod : from.pods) {
    const auto next = size_at_most(*from.job, left - pod.gpus);
    if (!next || *next != left - pod.gpus || *next < least) return false;
    if (pod.in_cell) return false;
    if (!is_in_cells(from) && is_protected(from, pod.type, wanting, trial.quota)) {
      if (!from.job->mix) return false;
      continue;
    }
    if (!helps(pod)) continue;
    give_back(from, pod, trial);
    trial.victims.emplace_back(&from, pod.ordinal);
    pod.lent = true;
    left = *next;
    if (fits(wanting, pods)) return true;
  }
  return false;
}

// Jobs to stop, so that it fits.
std::optional<std::vector<Session::Entry*>> Session::preempt(const Entry& wanting,
                                                             std::int64_t pods, Trial& trial,
                                                             const std::vector<Entry*>& among) {
  const std::size_t mark = free_.mark();
  const QuotaBook before = quota_;
  ServedFirst first;
  for (int attempt = 0; attempt < kStopAttempts; ++attempt) {
    Trial next = trial;
    auto stopped = stop_until_it_fits(wanting, pods, next, among, first);
    if (!stopped) return std::nullopt;
    QuotaBook after = trial.quota;
    for (const Entry* entry : *stopped)
      for (const Pod& pod : entry->pods)
        if (!pod.lent) after.give_back(queue_of(*entry), pod.type, pod.gpus);
    if (!note_served_before(*stopped, wanting, after, first)) return stopped;
    free_.undo_to(mark);
    quota_ = before;
  }
  return std::nullopt;
}

// The last in order first.
std::optional<std::vector<Session::Entry*>> Session::stop_until_it_fits(
    const Entry& wanting, std::int64_t pods, Trial& trial, const std::vector<Entry*>& among,
    const ServedFirst& first) {
  std::vector<Entry*> stopped;
  for (Entry* entry : among) {
    if (entry->now == 0 || !entry->add.empty())
      continue;  // what it was given in this round is not held yet
    if (std::ranges::find(first, entry) != first.end()) continue;
    const auto helps = [&](const Pod& pod) { return is_of_use(trial, wanting, node_of(pod)); };
    if (!may_preempt(wanting, *entry, trial) || std::ranges::none_of(entry->pods, helps)) continue;
    stopped.push_back(entry);
    for (const Pod& pod : entry->pods) {
      if (pod.lent) continue;
      give_back(*entry, pod, trial);
    }
    if (!fits(wanting, pods)) continue;
    // Who comes first is spared first.
    for (Entry* victim : std::vector<Entry*>(stopped.rbegin(), stopped.rend()))
      if (fits_without(*victim, false, wanting, pods)) std::erase(stopped, victim);
    return stopped;
  }
  return std::nullopt;
}

// Whether it fits though the other one keeps its pods: those that it has lent, or all others. Keeps
// them for it then.
bool Session::fits_without(const Entry& giver, bool is_lent, const Entry& wanting,
                           std::int64_t pods) {
  const std::size_t mark = free_.mark();
  const QuotaBook before = quota_;
  for (const Pod& pod : giver.pods) {
    if (pod.lent != is_lent) continue;
    free_.take(node_of(pod), giver.job->per_pod);
    quota_.take(queue_of(giver), pod.type, pod.gpus);
  }
  if (fits(wanting, pods)) return true;
  free_.undo_to(mark);
  quota_ = before;
  return false;
}

// Of those that would give what they have beyond their minimum and are not stopped: who comes first
// in order keeps it first, if the other one fits all the same.
void Session::spare_surplus(const Entry& wanting, std::int64_t pods,
                            const std::vector<Entry*>& stopped, Victims& victims) {
  std::vector<Entry*> givers;
  for (const auto& [entry, ordinal] : std::views::reverse(victims))
    if (std::ranges::find(givers, entry) == givers.end() &&
        std::ranges::find(stopped, entry) == stopped.end())
      givers.push_back(entry);
  for (Entry* giver : givers) {
    if (!fits_without(*giver, true, wanting, pods)) continue;
    for (Pod& pod : giver->pods) pod.lent = false;
    std::erase_if(victims, [&](const auto& one) { return one.first == giver; });
  }
}

std::vector<std::string> Session::stop_victims(const std::vector<Entry*>& stopped, Victims shrunk,
                                               const Entry& wanting) {
  std::erase_if(shrunk, [&](const auto& v) {
    return std::find(stopped.begin(), stopped.end(), v.first) != stopped.end();
  });
  std::vector<std::string> names = shrink_victims(shrunk, wanting.job->name);
  for (Entry* victim : stopped) {
    for (const Pod& pod : victim->pods) {
      quota_.give_back(queue_of(*victim), pod.type, pod.gpus);
      victim->remove.push_back(pod.ordinal);
    }
    victim->pods.clear();
    victim->cause = why_preempted(wanting, *victim);
    victim->now = 0;
    victim->preempted = true;
    victim->blocked = true;
    if (victim->has_verdict) tell_to_wait(*victim, size_at_least(*victim->job, victim->job->min));
    names.push_back(victim->job->name);
  }
  return names;
}

std::vector<std::string> Session::shrink_victims(const Victims& victims,
                                                 const std::string& for_whom) {
  std::vector<std::string> names;
  for (const auto& [entry, ordinal] : victims) {
    const auto pod = std::ranges::find(entry->pods, ordinal, &Pod::ordinal);
    CHECK(pod != entry->pods.end());
    entry->remove.push_back(ordinal);
    entry->now -= pod->gpus;
    quota_.give_back(queue_of(*entry), pod->type, pod->gpus);
    entry->pods.erase(pod);
    entry->cause = MakesRoom{for_whom};
    if (std::ranges::find(names, entry->job->name) == names.end())
      names.push_back(entry->job->name);
  }
  return names;
}

bool Session::fits(const Entry& wanting, std::int64_t pods) {
  const std::size_t mark = free_.mark();
  const bool placed = placer_.place(wanting.index, pods, bound_of(wanting)).has_value();
  free_.undo_to(mark);
  return placed;
}

// Undoes what was tried, and if the job would have fitted, keeps those nodes from all others.
bool Session::reserve_if_fits(const Entry& wanting, std::int64_t pods, std::size_t mark) {
  const std::size_t tried = free_.mark();
  const auto placed = placer_.place(wanting.index, pods, bound_of(wanting));
  if (!placed) {
    free_.undo_to(tried);
    return false;
  }
  promise_what_leaves({placed->begin(), placed->end()});
  free_.undo_to(mark);
  for (const NodeIndex n : *placed) {
    Resources all = free_[n];
    all.raise_to_zero();
    free_.take(n, all);
  }
  return true;
}

}  // namespace rubato::sched
