// What a job may take: its queue's room, the types it can use, all that the cluster has for it.
#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

namespace rubato::sched {

// What its queue lets the job take: of the type it is bound to, else of the best one.
Gpus Session::room_for(const Entry& entry) const {
  if (entry.job->mix) return quota_.room(queue_of(entry));
  Gpus best = 0;
  for (const TypeIndex type : types_for(entry))
    best = std::max(best, quota_.room(queue_of(entry), type));
  return best;
}

// JobGroup::capacity, as far as its queue may hold it: what it could have if it were alone.
Gpus Session::most_ever(const Entry& entry) const {
  const Job& job = *entry.job;
  const JobGroup& group = problem_.group(entry.index);
  const bool spans_types = job.mix && !job.one_node;
  Gpus most = 0;
  for (std::size_t i = 0; i < group.types.size(); ++i) {
    const Gpus of_type =
        std::min(group.capacities[i], quota_.most(queue_of(entry), group.types[i]));
    const Gpus in_pods = of_type / job.per_pod.gpus * job.per_pod.gpus;
    most = spans_types ? most + in_pods : std::max(most, in_pods);
  }
  return std::min(most, quota_.most(queue_of(entry)) / job.per_pod.gpus * job.per_pod.gpus);
}

std::vector<TypeIndex> Session::types_for(const Entry& entry) const {
  std::vector<TypeIndex> types;
  for (const Held& held : entry.job->held) {
    if (held.lost || held.gpu_type.empty()) continue;
    const TypeIndex type = type_of(held);
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  return types.empty() ? problem_.group(entry.index).types : types;
}

bool Session::is_inside_guarantee(const Entry& entry) const {
  if (!quota_.has_guarantees()) return false;
  const auto wanted = size_at_least(*entry.job, entry.now);
  const Gpus more = wanted ? std::max<Gpus>(*wanted - entry.now, 0) : 0;
  const std::vector<TypeIndex> types = types_for(entry);
  return std::any_of(types.begin(), types.end(), [&](TypeIndex type) {
    return quota_.is_guaranteed(queue_of(entry), type, more);
  });
}

// JobGroup::capacity without what the job avoids for now, but with what it holds there.
Gpus Session::capacity_not_avoided(const Job& job) const {
  Capacity capacity(job);
  for (const Node& node : problem_.state().nodes)
    if (may_use(job, node) && !job.avoid.contains(node.id)) capacity.add(node);
  for (const Held& held : job.held)
    if (!held.lost && !held.leaving && job.avoid.contains(held.node))
      capacity.add(held.node, held.gpu_type, held.gpus);
  return capacity.most();
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
  for (const Held& held : entry.job->held)
    if (!held.lost) return type_of(held);
  if (entry.add.empty()) return std::nullopt;
  return problem_.type_of(entry.add.front());
}

// Pods that are lost bind nothing.
bool Session::has_pods(const Job& job) {
  return std::ranges::any_of(job.held, [](const Held& held) { return !held.lost; });
}

// It is there, for the pod counts.
NodeIndex Session::node_of(const Held& held) const {
  const auto node = problem_.find_node(held.node);
  CHECK(node.has_value());
  return *node;
}

// With the pods placed in this round.
Bound Session::bound_of(const Entry& entry) const {
  Bound bound = placer_.bound_of(entry.index);
  if (!targets_.types.empty()) bound.preferred = targets_.types[entry.index.value];
  if (entry.add.empty() || has_pods(*entry.job)) return bound;
  if (!entry.job->mix) bound.type = problem_.type_of(entry.add.front());
  if (entry.job->one_node) bound.node = entry.add.front();
  return bound;
}

}  // namespace rubato::sched
