// Jobs inside the cells of their queue (scheduler/placement/cells.h): before all others, in the
// policy's order, each gets the whole of its minimum there, and what is in no cell leaves for it.
// What more it gets, and all that other jobs get, is in no cell: it may be anywhere, first on nodes
// that no queue will need first.
#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>

namespace rubato::sched {

void Session::give_cells() {
  find_what_may_leave();
  std::set<QueueIndex> has_head;  // the first of it that waits holds up all behind
  for (Entry& entry : entries_) {
    if (!cells_.has_cells(queue_of(entry)) || !wants_cells(entry)) continue;
    const auto wanted = size_at_least(*entry.job, entry.now);
    if (!wanted || why_too_large(entry, *wanted).outcome != Outcome::kPlaced) continue;
    if (targets_.head_blocks && has_head.contains(queue_of(entry))) continue;
    const std::int64_t pods = (*wanted - entry.now) / entry.job->per_pod.gpus;
    if (const auto places = find_cells(entry, pods, room_for_cells(), cells_))
      enter_cells(entry, *places);
    else if (is_confined_to_cells(entry) && displace_in_cells(entry, pods))
      continue;
    else if (most_in_cells(entry) >= *wanted)
      has_head.insert(queue_of(entry));
  }
  set_aside_ = cells_.set_aside(costs_of_nodes());
  std::erase_if(set_aside_, [&](NodeIndex n) { return free_[n].gpus <= 0; });
}

// It waits, or has lost some of what it has in cells.
bool Session::wants_cells(const Entry& entry) const {
  return entry.now < entry.job->min && !entry.preempted && !entry.job->gets_spare_only() &&
         !is_to_move(entry) && why_kept_out(entry).outcome == Outcome::kPlaced &&
         std::ranges::all_of(entry.pods, &Pod::in_cell);
}

// By node: what is held by pods that are in no cell, and whose job may be shrunk or stopped.
void Session::find_what_may_leave() {
  may_leave_ = ByNode(problem_.end_of_nodes().value);
  coming_ = may_leave_;
  owed_ = may_leave_;
  inside_ = Table<NodeIndex, std::vector<std::size_t>>(problem_.end_of_nodes().value);
  std::vector<std::pair<JobId, Entry*>> by_id;
  by_id.reserve(entries_.size());
  for (Entry& entry : entries_) by_id.emplace_back(entry.job->id, &entry);
  std::ranges::sort(by_id);
  for (std::size_t i = 0; i < by_id.size(); ++i) {
    by_id[i].second->by_id = i;
    for (const Pod& pod : by_id[i].second->pods)
      if (pod.in_cell) note_inside(node_of(pod), i);
  }
  for (const auto& [node, per_pod] : leaving_) coming_[node] += *per_pod;
  for (Entry* entry : holders_) {
    if (!entry->job->settled) continue;
    Gpus left = entry->now;
    for (const Pod& pod : entry->pods) {
      left -= pod.gpus;
      if (pod.in_cell || (!entry->may_stop && left < entry->job->min)) break;
      may_leave_[node_of(pod)] += entry->job->per_pod;
    }
  }
}

void Session::note_inside(NodeIndex node, std::size_t job) {
  std::vector<std::size_t>& all = inside_[node];
  all.insert(std::ranges::upper_bound(all, job), job);
}

// By node: what there would be if all who are in no cell left.
Session::ByNode Session::room_for_cells() const {
  ByNode room(problem_.end_of_nodes().value);
  for (NodeIndex n; n < room.end_key(); ++n) {
    room[n] = free_[n];
    room[n] += coming_[n];
    room[n] += may_leave_[n];
    room[n] -= owed_[n];
  }
  return room;
}

// What it needs is bound in `cells`.
std::optional<std::vector<Cells::Place>> Session::find_cells(const Entry& entry, std::int64_t pods,
                                                             const ByNode& room,
                                                             Cells& cells) const {
  const Bound bound = bound_of(entry);
  if (bound.is_nowhere) return std::nullopt;
  const Table<NodeIndex, Gpus> costs = costs_of_nodes();
  Cells::Demand demand{.queue = queue_of(entry),
                       .pods = pods,
                       .on_one_node = entry.job->one_node,
                       .costs = &costs,
                       .inside = &inside_};
  for (const TypeIndex type : types_in_cells(entry, bound, pods)) {
    demand.type = type;
    for (const auto& domain : domains_in_cells(entry, bound)) {
      demand.fits = fits_in_cells(entry, bound, type, domain, room);
      if (auto places = cells.place(demand)) return places;
    }
  }
  return std::nullopt;
}

// By node: what is held by pods that may leave.
Table<NodeIndex, Gpus> Session::costs_of_nodes() const {
  Table<NodeIndex, Gpus> costs(problem_.end_of_nodes().value, 0);
  for (NodeIndex n; n < costs.end_key(); ++n) costs[n] = may_leave_[n].gpus;
  return costs;
}

// Where it has a topology, each of its level; none, the last: no matter where.
std::vector<std::optional<DomainIndex>> Session::domains_in_cells(const Entry& entry,
                                                                  const Bound& bound) const {
  const auto& topology = entry.job->topology;
  if (!topology) return {std::nullopt};
  if (bound.domain) return {bound.domain};
  const std::size_t level = problem_.level_named(topology->level);
  std::set<DomainIndex> all;
  for (const NodeIndex n : problem_.group(entry.index).admitted)
    if (const auto domain = problem_.domain_of(level, n)) all.insert(*domain);
  std::vector<std::optional<DomainIndex>> domains(all.begin(), all.end());
  if (!topology->required) domains.emplace_back(std::nullopt);
  return domains;
}

Table<NodeIndex, std::int64_t> Session::fits_in_cells(const Entry& entry, const Bound& bound,
                                                      TypeIndex type,
                                                      std::optional<DomainIndex> domain,
                                                      const ByNode& room) const {
  const auto& topology = entry.job->topology;
  const std::size_t level = topology ? problem_.level_named(topology->level) : 0;
  Table<NodeIndex, std::int64_t> fits(problem_.end_of_nodes().value, 0);
  for (const NodeIndex n : problem_.group(entry.index).admitted) {
    if (problem_.type_of(n) != type || (bound.node && n != *bound.node)) continue;
    if (!domain || problem_.domain_of(level, n) == domain)
      fits[n] = std::max<std::int64_t>(room[n].copies_of(entry.job->per_pod), 0);
  }
  return fits;
}

// That its queue has cells of, and lets it have so much of; the one that the policy prefers first.
std::vector<TypeIndex> Session::types_in_cells(const Entry& entry, const Bound& bound,
                                               std::int64_t pods) const {
  std::vector<TypeIndex> types;
  for (const TypeIndex type : cells_.types_of(queue_of(entry)))
    if ((!bound.type || type == *bound.type) &&
        quota_.room(queue_of(entry), type) >= pods * entry.job->per_pod.gpus)
      types.push_back(type);
  std::ranges::stable_partition(types, [&](TypeIndex type) { return bound.preferred == type; });
  return types;
}

// At once, where there is room now; else when who is there has left.
void Session::enter_cells(Entry& entry, const std::vector<Cells::Place>& places) {
  const Job& job = *entry.job;
  if (!places.empty()) count_lasting_started(entry, problem_.type_of(places.front().node));
  std::map<NodeIndex, std::int64_t> pods;
  for (const Cells::Place& place : places) ++pods[place.node];
  const bool is_free = std::ranges::all_of(
      pods, [&](const auto& one) { return free_[one.first].copies_of(job.per_pod) >= one.second; });
  if (is_free) {
    for (const Cells::Place& place : places) {
      free_.take(place.node, job.per_pod);
      entry.add.push_back(place.node);
      entry.cells.push_back(place.level);
      note_inside(place.node, entry.by_id);
      entry.now += job.per_pod.gpus;
      quota_.take(queue_of(entry), problem_.type_of(place.node), job.per_pod.gpus);
    }
    if (!entry.cause) entry.cause = RoomForMinimum{};
    return verdict(entry, {});
  }
  std::vector<std::string> names;
  for (const auto& [node, count] : pods) {
    for (std::int64_t i = 0; i < count; ++i) owed_[node] += job.per_pod;
    clear_for_cell(entry, node, names);
    Resources all = free_[node];
    all.raise_to_zero();
    coming_[node] += all;
    free_.take(node, all);
  }
  const Gpus needed = std::ssize(places) * job.per_pod.gpus;
  keep_quota(entry, needed, problem_.type_of(places.front().node));
  verdict(entry, {.outcome = Outcome::kNotNow,
                  .reason = Reason::kWaitingForRelease,
                  .needed = needed,
                  .waits_for = std::move(names)});
}

// Until what is owed there will be free: the last in order leave first.
void Session::clear_for_cell(const Entry& wanting, NodeIndex node,
                             std::vector<std::string>& names) {
  const auto is_enough = [&] {
    Resources room = free_[node];
    room += coming_[node];
    return room.fits(owed_[node]);
  };
  for (Entry* entry : std::views::reverse(holders_)) {
    if (is_enough()) return;
    if (entry == &wanting || !entry->job->settled || !entry->add.empty()) continue;
    while (!is_enough() && leaves_for_cell(*entry, wanting, node))
      if (std::ranges::find(names, entry->job->name) == names.end())
        names.push_back(entry->job->name);
  }
}

// A pod of it there that may leave, with others where the sizes that it may have demand that.
// False: there is none.
bool Session::leaves_for_cell(Entry& entry, const Entry& wanting, NodeIndex node) {
  const auto there = std::ranges::find_if(
      entry.pods, [&](const Pod& pod) { return !pod.in_cell && node_of(pod) == node; });
  if (there == entry.pods.end()) return false;
  const auto least = size_at_most(*entry.job, entry.now - there->gpus);
  const bool stops = !least || *least < entry.job->min;
  if (stops && !entry.may_stop) return false;
  std::rotate(entry.pods.begin(), there, there + 1);
  const Gpus left = stops ? 0 : *least;
  while (entry.now > left) {
    const Pod& pod = entry.pods.front();
    const NodeIndex from = node_of(pod);
    coming_[from] += entry.job->per_pod;
    if (!pod.in_cell) may_leave_[from] -= entry.job->per_pod;
    may_leave_[from].raise_to_zero();
    entry.remove.push_back(pod.ordinal);
    entry.now -= pod.gpus;
    quota_.give_back(queue_of(entry), pod.type, pod.gpus);
    entry.pods.erase(entry.pods.begin());
  }
  entry.cause = MakesRoom{wanting.job->name};
  if (!stops) return true;
  entry.cause = why_preempted(wanting, entry);
  entry.preempted = entry.blocked = true;
  return true;
}

// By jobs of its own queue that the policy lets it displace, the last in order first. Where a queue
// may borrow, there may be room elsewhere, and what follows finds it.
bool Session::displace_in_cells(Entry& entry, std::int64_t pods) {
  if (!config_.preempt) return false;
  std::optional<std::vector<Cells::Place>> places;
  for (Entry* victim : std::views::reverse(holders_of_queue_[queue_of(entry)])) {
    const bool is_own = queue_of(*victim) == queue_of(entry);
    const bool may =
        is_own && victim->may_stop && may_lend(*victim, entry) && may_displace(entry, *victim);
    if (!may || std::ranges::none_of(victim->pods, &Pod::in_cell)) continue;
    for (Pod& pod : victim->pods) {
      if (!pod.in_cell) continue;
      pod.in_cell = false;
      may_leave_[node_of(pod)] += victim->job->per_pod;
    }
    places = find_cells(entry, pods, room_for_cells(), cells_);
    if (places) break;
  }
  if (places) enter_cells(entry, *places);
  for (Entry* holder : holders_) keep_in_cells(*holder);
  return places.has_value();
}

// Those that were there before the round and have not been told to leave.
void Session::keep_in_cells(Entry& entry) {
  for (Pod& pod : entry.pods) {
    if (pod.in_cell || !pod.was_in_cell) continue;
    pod.in_cell = true;
    may_leave_[node_of(pod)] -= entry.job->per_pod;
  }
}

// All that it has is in cells: nobody of another queue takes that.
bool Session::is_in_cells(const Entry& entry) const {
  Gpus inside = 0;
  for (const Pod& pod : entry.pods) inside += pod.in_cell ? pod.gpus : 0;
  return inside > 0 && inside >= std::min(entry.job->min, entry.now);
}

// Those inside the cells of its queue, where it would not be inside itself once they are stopped:
// they would start again before it does. True: there are some.
bool Session::note_inside_cells(const std::vector<Entry*>& stopped, const Entry& wanting,
                                Gpus missing, ServedFirst& first) const {
  std::vector<const Entry*> inside;
  for (const Entry* entry : stopped)
    if (is_in_cells(*entry)) inside.push_back(entry);
  if (inside.empty() || would_be_inside(wanting, missing, stopped)) return false;
  first.insert(first.end(), inside.begin(), inside.end());
  return true;
}

// Asked in a trial: free_ holds what leaves and what was given back, which is not to count twice.
bool Session::would_be_inside(const Entry& entry, Gpus missing,
                              const std::vector<Entry*>& stopped) const {
  if (!cells_.has_cells(queue_of(entry)) || !wants_cells(entry)) return false;
  ByNode room = room_for_cells();
  for (const auto& [node, per_pod] : leaving_) room[node] -= *per_pod;
  for (const Entry* holder : holders_) {
    const bool stops = std::ranges::find(stopped, holder) != stopped.end();
    for (const Pod& pod : holder->pods)
      if (!pod.in_cell && (stops || pod.lent)) room[node_of(pod)] -= holder->job->per_pod;
  }
  Cells trial = cells_;
  return find_cells(entry, missing / entry.job->per_pod.gpus, room, trial).has_value();
}

bool Session::is_confined_to_cells(const Entry& entry) const {
  const Queue* queue = problem_.queue(queue_of(entry));
  return queue != nullptr && sched::is_confined_to_cells(*queue);
}

Verdict Session::why_not_in_cells(const Entry& entry, Gpus wanted) const {
  return {.outcome = Outcome::kNotNow,
          .reason = Reason::kCellsFull,
          .needed = wanted - entry.now,
          .available = most_in_cells(entry),
          .in_use = quota_.used(queue_of(entry)) - kept_[queue_of(entry)]};
}

// Elsewhere than on the nodes that are set aside, if there is room.
std::optional<std::vector<NodeIndex>> Session::place_apart(const Entry& entry, std::int64_t pods) {
  const std::size_t mark = free_.mark();
  for (const NodeIndex node : set_aside_) {
    Resources all = free_[node];
    all.raise_to_zero();
    free_.take(node, all);
  }
  const auto placed = placer_.place(entry.index, pods, bound_of(entry));
  free_.undo_to(mark);
  if (placed)
    for (const NodeIndex node : *placed) free_.take(node, entry.job->per_pod);
  return placed;
}

}  // namespace rubato::sched
