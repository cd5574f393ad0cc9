// What a job may take: its queue's room, the types it can use, all that the cluster has for it.
#include "scheduler/policy/round.h"
#include "scheduler/policy/sizes.h"

#include <algorithm>

namespace rubato::sched {
namespace {

Gpus whole_pods(const Job& job, const Node& node) {
  return node.gpus_total / job.per_pod.gpus * job.per_pod.gpus;
}

// By what the GPUs of a job must have in common: their node, their type, or nothing.
std::string bound_by(const Job& job, const NodeId& node, const std::string& type) {
  if (job.one_node) return node;
  return job.mix ? "" : type;
}

Gpus most_of(const std::map<std::string, Gpus>& all) {
  Gpus best = 0;
  for (const auto& [what, gpus] : all) best = std::max(best, gpus);
  return best;
}

}  // namespace

TypeRoom Round::room_of(const Job& job) const {
  return [this, &job](const std::string& type) {
    return type == QuotaBook::kAllTypes ? quota_.room(job.queue) : quota_.room(job.queue, type);
  };
}

// What its queue lets the job take: of the type it is bound to, else of the best one.
Gpus Round::room_for(const Job& job) const {
  if (job.mix) return quota_.room(job.queue);
  Gpus best = 0;
  for (const std::string& type : types_for(job))
    best = std::max(best, quota_.room(job.queue, type));
  return best;
}

std::set<std::string> Round::types_for(const Job& job) const {
  std::set<std::string> types;
  for (const Held& held : job.held)
    if (!held.lost && !held.gpu_type.empty()) types.insert(held.gpu_type);
  if (!types.empty()) return types;
  for (const Node& node : state_.nodes)
    if (may_use(job, node)) types.insert(node.gpu_type);
  return types;
}

bool Round::is_inside_guarantee(const Entry& entry) const {
  const auto wanted = size_at_least(*entry.job, entry.now);
  const Gpus more = wanted ? std::max<Gpus>(*wanted - entry.now, 0) : 0;
  const std::set<std::string> types = types_for(*entry.job);
  return std::any_of(types.begin(), types.end(), [&](const std::string& type) {
    return quota_.is_guaranteed(entry.job->queue, type, more);
  });
}

// All GPUs of the nodes the job may use, of its best single type unless it may mix; of the best
// node where one must hold all of it.
Gpus Round::capacity_for(const Job& job) const {
  std::map<std::string, Gpus> common;
  for (const Node& node : state_.nodes)
    if (may_use(job, node))  // a cordoned or silent node may come back
      common[bound_by(job, node.id, node.gpu_type)] += whole_pods(job, node);
  return most_of(common);
}

// The same without what it avoids for now, but with what it holds there.
Gpus Round::capacity_not_avoided(const Job& job) const {
  std::map<std::string, Gpus> common;
  for (const Node& node : state_.nodes)
    if (may_use(job, node) && !job.avoid.contains(node.id))
      common[bound_by(job, node.id, node.gpu_type)] += whole_pods(job, node);
  for (const Held& held : job.held)
    if (!held.lost && !held.leaving && job.avoid.contains(held.node))
      common[bound_by(job, held.node, held.gpu_type)] += held.gpus;
  return most_of(common);
}

// A node that may come back and has not been tried yet is not avoided.
bool Round::avoids_all(const Job& job) const {
  return !job.avoid.empty() && std::ranges::none_of(state_.nodes, [&](const Node& node) {
    return may_use(job, node) && node.gpus_total >= job.per_pod.gpus &&
           !job.avoid.contains(node.id);
  });
}

PlacedSoFar Round::placed_so_far(const Entry& entry) {
  return {type_of(entry), entry.add.empty() ? "" : entry.add.front().node};
}

std::string Round::type_of(const Entry& entry) {
  for (const Held& held : entry.job->held) {
    if (!held.lost) return held.gpu_type;
  }
  return entry.add.empty() ? "" : entry.add.front().gpu_type;
}

}  // namespace rubato::sched
