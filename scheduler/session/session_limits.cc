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

// kPlaced: it may fit, as far as its queue and all that nodes have say, whoever holds it. Where
// several things are in its way, what no waiting helps is told, then what its queue says.
Verdict Session::why_too_large(const Entry& entry, Gpus wanted) const {
  const Job& job = *entry.job;
  const JobGroup& group = problem_.group(entry.index);
  if (const Gpus most = most_of(entry, group.capacity); most < wanted)
    return {.outcome = Outcome::kNever,
            .reason = most < group.capacity.most() ? Reason::kQueueLimit : Reason::kExceedsCluster,
            .available = most};
  const auto queue_is_full = [&](Gpus room) {
    return Verdict{.outcome = Outcome::kNotNow,
                   .reason = Reason::kQueueLimit,
                   .available = std::max<Gpus>(room, 0),
                   .in_use = quota_.used(queue_of(entry)) - kept_[queue_of(entry)]};
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

bool Session::is_inside_guarantee(const Entry& entry) const {
  if (!quota_.has_guarantees()) return false;
  const auto wanted = size_at_least(*entry.job, entry.now);
  const Gpus more = wanted ? std::max<Gpus>(*wanted - entry.now, 0) : 0;
  return std::ranges::any_of(types_for(entry), [&](TypeIndex type) {
    return quota_.is_guaranteed(queue_of(entry), type, more);
  });
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
