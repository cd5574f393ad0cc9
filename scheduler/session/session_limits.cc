// What a job may take: its queue's room, the types it can use, all that the cluster has for it.
#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

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
      return {.outcome = Outcome::kNever, .reason = Reason::kExceedsCluster, .available = most};
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
  return of_nodes(effective_gpus(job) > 0 ? capacity_where(entry, admits) : group.capacity_now,
                  Reason::kNodesUnavailable);
}

// As far as its queue may hold it.
Gpus Session::most_of(const Entry& entry, const Capacity& capacity) const {
  const QueueIndex queue = queue_of(entry);
  if (!quota_.is_bounded(queue)) return capacity.most();
  const Gpus per_pod = entry.job->per_pod.gpus;
  const Gpus most = capacity.most([&](TypeIndex type) { return quota_.most(queue, type); });
  return std::min(most, quota_.most(queue) / per_pod * per_pod);
}

const std::vector<TypeIndex>& Session::types_for(const Entry& entry) const {
  return entry.types.empty() ? problem_.group(entry.index).types : entry.types;
}

std::optional<QueueIndex> Session::guarantor_of(const Entry& entry,
                                                std::optional<QueueIndex> against) const {
  if (!quota_.has_guarantees()) return std::nullopt;
  const auto wanted = size_at_least(*entry.job, entry.now);
  const Gpus more = wanted ? std::max<Gpus>(*wanted - entry.now, 0) : 0;
  std::optional<QueueIndex> narrowest;
  for (const TypeIndex type : types_for(entry)) {
    const auto queue = quota_.guarantor(queue_of(entry), type, more, against);
    if (queue && (!narrowest || quota_.level_of(*queue) > quota_.level_of(*narrowest)))
      narrowest = queue;
  }
  return narrowest;
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
      capacity.add_whole(problem_.confines(job, n), problem_.type_of(n),
                         problem_.node(n).gpus_total);
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

// With the pods placed in this round.
Bound Session::bound_of(const Entry& entry) const {
  if (entry.moving) return {.type = fixed_type(entry), .domain = entry.only};
  Bound bound = placer_.bound_of(entry.index);
  if (entry.only) bound.domain = entry.only;
  if (!bound.type) bound.type = fixed_type(entry);
  if (!targets_.types.empty()) bound.preferred = targets_.types[entry.index.value];
  if (entry.add.empty() || entry.type) return bound;  // pods that are lost bind nothing
  if (!entry.job->mix) bound.type = problem_.type_of(entry.add.front());
  if (entry.job->topology) bound.used = entry.add;
  if (is_confined(*entry.job)) placer_.bind(bound, *entry.job, entry.add.front());
  return bound;
}

}  // namespace rubato::sched
