// What a job may take: its queue's room, the types it can use, all that the cluster has for it.
#include "common/check.h"
#include "scheduler/model/sharing.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>
#include <tuple>

namespace rubato::sched {
namespace {

bool is_not_avoided(const Job& job, const Node& node) {
  return may_use(job, node) && !job.avoid.contains(node.id);
}

}  // namespace

// What its queue lets the job take: of the type it is bound to, else of the best one.
Gpus Session::room_for(const Entry& entry) const {
  if (entry.job->mix) return quota_.room(queue_of(entry));
  Gpus best = 0;
  for (const TypeIndex type : types_for(entry))
    best = std::max(best, quota_.room(queue_of(entry), type));
  return best;
}

// Of the queue and its parents the one of which `of` says least; of equals the narrowest.
template <class Of>
QueueIndex Session::with_least(QueueIndex queue, const Of& of) const {
  QueueIndex found = queue;
  for (auto one = problem_.parent_of(queue); one; one = problem_.parent_of(*one))
    if (of(*one) < of(found)) found = *one;
  return found;
}

std::string Session::name_of_parent(QueueIndex queue, const Entry& entry) const {
  return queue == queue_of(entry) ? "" : problem_.queue(queue)->name;
}

// kPlaced: it may fit, as far as its queue and all that nodes have say, whoever holds it. Where
// several things are in its way, what no waiting helps is told, then what its queue says.
Verdict Session::why_too_large(const Entry& entry, Gpus wanted) const {
  const Job& job = *entry.job;
  const JobGroup& group = problem_.group(entry.index);
  if (const Gpus most = most_of(entry, group.capacity); most < wanted) {
    if (most == group.capacity.most())
      return {.outcome = Outcome::kNever,
              .reason = Reason::kExceedsCluster,
              .available = most,
              .of_nodes = group.most_gpus > most ? group.most_gpus : 0};
    const QueueIndex limiting = with_least(queue_of(entry), [&](QueueIndex q) {
      return std::min(quota_.own_most(q), group.capacity.most([&](TypeIndex type) {
        return quota_.own_most(q, type);
      }));
    });
    return {.outcome = Outcome::kNever,
            .reason = Reason::kQueueLimit,
            .available = most,
            .queue = name_of_parent(limiting, entry)};
  }
  if (is_confined_to_cells(entry))
    if (const Gpus most = most_in_cells(entry); most < wanted)
      return {.outcome = Outcome::kNever, .reason = Reason::kCellsFull, .available = most};
  const auto queue_is_full = [&](Gpus room) {
    const QueueIndex full = with_least(queue_of(entry), [&](QueueIndex q) {
      if (job.mix) return quota_.own_room(q);
      Gpus best = 0;
      for (const TypeIndex type : types_for(entry)) best = std::max(best, quota_.own_room(q, type));
      return best;
    });
    return Verdict{.outcome = Outcome::kNotNow,
                   .reason = Reason::kQueueLimit,
                   .available = std::max<Gpus>(room, 0),
                   .in_use = quota_.used(full) - kept_[full],
                   .promised = kept_[full],
                   .queue = name_of_parent(full, entry)};
  };
  if (const Gpus room = room_for(entry); room < wanted - entry.now) return queue_is_full(room);
  if (avoids_all(job)) return {.outcome = Outcome::kNotNow, .reason = Reason::kEveryNodeAvoided};
  const auto of_nodes = [&](const Capacity& capacity, Reason reason) -> Verdict {
    if (const Gpus most = capacity.most(); most < wanted)
      return {.outcome = Outcome::kNotNow, .reason = reason, .available = most};
    const Gpus most = most_of(entry, capacity);
    return most < wanted ? queue_is_full(most - entry.now) : Verdict{};
  };
  if (!job.avoid.empty()) {
    // No room that others make helps it before one of those nodes is tried again.
    const Verdict no = of_nodes(capacity_where(entry, is_not_avoided), Reason::kNodesAvoided);
    if (no.outcome != Outcome::kPlaced) return no;
  }
  const Capacity now = effective_gpus(job) > 0 ? capacity_where(entry, admits) : group.capacity_now;
  if (Verdict no = of_nodes(now, Reason::kNodesUnavailable); no.outcome != Outcome::kPlaced)
    return no;
  const Gpus most = most_without_others(entry);
  if (most >= wanted) return {};
  return {.outcome = Outcome::kNotNow,
          .reason = Reason::kNodesUnavailable,
          .available = most,
          .of_nodes = now.most()};
}

// In the cells of its queue, as far as that lets it have so much of a type.
Gpus Session::most_in_cells(const Entry& entry) const {
  const QueueIndex queue = queue_of(entry);
  Gpus most = 0;
  for (const TypeIndex type : cells_.types_of(queue)) {
    const std::tuple kind(queue, problem_.group_of(entry.index), type);
    const auto [known, is_new] = most_in_cells_.try_emplace(kind);
    if (is_new) known->second = cells_.most_of(queue, type, *entry.job);
    most = std::max(most, std::min(known->second, quota_.most(queue, type)));
  }
  return most;
}

// What nodes that take pods of it have CPU, memory and all else for, if no other job were there;
// kNoLimit where that is not known: jobs that are not in the state hold some.
Gpus Session::most_without_others(const Entry& entry) const {
  if (has_leavers_) return kNoLimit;
  if (!without_others_) without_others_.emplace(problem_, room_without_jobs());
  Gpus most = 0;
  for (const TypeIndex type : types_for(entry)) {
    const Gpus of_type = without_others_->most(entry.index, type);
    most = entry.job->mix ? most + of_type : std::max(most, of_type);
  }
  for (const Pod& pod : entry.pods)
    if (!admits(*entry.job, problem_.node(node_of(pod)))) most += pod.gpus;
  return most;
}

// All GPUs, and beside them what pods of no job have left.
Table<NodeIndex, Resources> Session::room_without_jobs() const {
  Table<NodeIndex, Resources> room;
  room.reserve(problem_.end_of_nodes().value);
  for (NodeIndex n; n < problem_.end_of_nodes(); ++n) {
    room.push_back(problem_.node(n).free);
    room[n].raise_to_zero();
  }
  for (JobIndex j; j < problem_.end_of_jobs(); ++j)
    for (const Problem::HeldAt& held : problem_.held_at(j))
      if (held.node) room[*held.node] += taken_by_pod(problem_.job(j));
  for (NodeIndex n; n < problem_.end_of_nodes(); ++n) room[n].gpus = problem_.node(n).gpus_total;
  return room;
}

// As far as its queue may hold it.
Gpus Session::most_of(const Entry& entry, const Capacity& capacity) const {
  const QueueIndex queue = queue_of(entry);
  if (!quota_.is_bounded(queue)) return capacity.most();
  const Gpus per_pod = entry.job->per_pod.gpus;
  const Gpus most = capacity.most([&](TypeIndex type) { return quota_.most(queue, type); });
  return std::min(most, quota_.most(queue) / per_pod * per_pod);
}

// One that mixes types is bound to none by what it holds.
const std::vector<TypeIndex>& Session::types_for(const Entry& entry) const {
  const bool is_bound = !entry.types.empty() && !entry.job->mix;
  return is_bound ? entry.types : problem_.group(entry.index).types;
}

std::optional<QueueIndex> Session::guarantor_of(const Entry& entry,
                                                std::optional<QueueIndex> against) const {
  if (!quota_.has_guarantees()) return std::nullopt;
  std::optional<QueueIndex>& narrowest = last_guarantor_.queue;
  if (last_guarantor_.version != quota_.version() ||
      last_guaranteed_ != std::pair(&entry, entry.now)) {
    last_guarantor_ = {quota_.version(), std::nullopt};
    last_guaranteed_ = {&entry, entry.now};
    const auto wanted = size_at_least(*entry.job, entry.now);
    const Gpus more = wanted ? std::max<Gpus>(*wanted - entry.now, 0) : 0;
    for (const TypeIndex type : types_for(entry)) {
      const auto queue = quota_.guarantor(queue_of(entry), type, more);
      if (queue && (!narrowest || quota_.level_of(*queue) > quota_.level_of(*narrowest)))
        narrowest = queue;
    }
  }
  // What the other one is a part of, it is a part of the wider ones, too.
  const bool is_within = narrowest && against && quota_.is_part_of(*against, *narrowest);
  return is_within ? std::nullopt : narrowest;
}

// Of nodes that are open to the job, and what it holds on others; of what its pods bind it to.
Capacity Session::capacity_where(const Entry& entry,
                                 bool (*is_open)(const Job&, const Node&)) const {
  const Job& job = *entry.job;
  const auto first = std::ranges::find_if(job.held, &Held::stays);
  const auto held_at = first == job.held.end() ? std::nullopt : problem_.find_node(first->node);
  const auto suits = [&](NodeIndex n) {
    const Node& node = problem_.node(n);
    if (!is_open(job, node)) return false;
    if (first == job.held.end()) return true;
    return (job.mix || node.gpu_type == first->gpu_type) &&
           (!held_at || problem_.confines(job, n) == problem_.confines(job, *held_at));
  };
  Capacity capacity(job);
  for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
    if (suits(n))
      capacity.add(problem_.confines(job, n), problem_.type_of(n),
                   whole_of(problem_.node(n)).copies_of(job.per_pod) * job.per_pod.gpus);
  for (const Pod& pod : entry.pods)
    if (const NodeIndex n = node_of(pod); !suits(n))
      capacity.add(problem_.confines(job, n), pod.type, pod.gpus);
  return capacity;
}

// A node that may come back and has not been tried yet is not avoided.
bool Session::avoids_all(const Job& job) const {
  return !job.avoid.empty() && std::ranges::none_of(problem_.state().nodes, [&](const Node& node) {
    return may_use(job, node) && node.gpus_total >= job.per_pod.gpus &&
           !job.avoid.contains(node.id);
  });
}

// Who wait for what may come, and may have one type only.
void Session::count_bound_to_types() {
  for (const Entry& entry : entries_) {
    if (entry.now > 0 || types_for(entry).size() != 1 || entry.job->gets_spare_only()) continue;
    if (is_left_out(entry) || why_kept_out(entry).outcome != Outcome::kPlaced) continue;
    const auto least = size_at_least(*entry.job, 0);
    if (least && *least <= problem_.group(entry.index).capacity.most())
      ++bound_to_type_[types_for(entry).front()];
  }
}

// The type that it leaves to fewest of those that can have no other; of equals where most is free.
// None: it has no choice, or they are alike in this.
std::optional<TypeIndex> Session::least_needed_type(const Entry& entry) const {
  const std::vector<TypeIndex>& types = types_for(entry);
  const auto needed = [&](TypeIndex type) { return bound_to_type_[type]; };
  if (std::ranges::adjacent_find(types, std::ranges::not_equal_to{}, needed) == types.end())
    return std::nullopt;
  return *std::ranges::min_element(
      types, {}, [&](TypeIndex type) { return std::pair(needed(type), -free_.gpus(type)); });
}

// Of the pods that it holds, else of those placed in this round.
std::optional<TypeIndex> Session::type_of(const Entry& entry) const {
  if (entry.type) return entry.type;
  if (entry.add.empty()) return std::nullopt;
  return problem_.type_of(entry.add.front());
}

// It is there, for the pod counts.
NodeIndex Session::node_of(const Pod& pod) {
  CHECK(pod.node.has_value());
  return *pod.node;
}

// What the pods bind that it keeps of those held before; all are of one type, wherever they go.
Bound Session::bound_by_rest(const Entry& entry) const {
  const Job& job = *entry.job;
  Bound bound;
  if (!job.mix) bound.type = entry.type;
  for (const Pod& pod : entry.pods) bound.used.push_back(node_of(pod));
  if (is_confined(job) && !bound.used.empty()) placer_.bind(bound, job, bound.used.front());
  return bound;
}

// With the pods placed in this round.
Bound Session::bound_of(const Entry& entry) const {
  if (entry.moving) return {.type = fixed_type(entry), .domain = entry.only};
  Bound bound = entry.relocates ? bound_by_rest(entry) : placer_.bound_of(entry.index);
  if (entry.only) bound.domain = entry.only;
  if (!bound.type) bound.type = entry.guaranteed;
  if (!bound.type) bound.type = fixed_type(entry);
  bound.preferred =
      targets_.types.empty() ? least_needed_type(entry) : targets_.types[entry.index.value];
  if (entry.add.empty() || entry.type) return bound;  // pods that are lost bind nothing
  if (!entry.job->mix) bound.type = problem_.type_of(entry.add.front());
  if (entry.job->topology) bound.used = entry.add;
  if (is_confined(*entry.job)) placer_.bind(bound, *entry.job, entry.add.front());
  return bound;
}

}  // namespace rubato::sched
