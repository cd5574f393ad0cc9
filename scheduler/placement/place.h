// Which nodes: given how many pods, choose where. Works on a scratch copy of the nodes' free
// resources, so that a plan can be tried and thrown away.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/plan.h"

#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace rubato::sched {

// Free resources during one round. take() and give_back() keep them; a copy is a transaction.
class FreeMap {
 public:
  explicit FreeMap(const ClusterState& state);
  void take(const NodeId& node, const Resources& what);
  void give_back(const NodeId& node, const Resources& what);
  const std::map<NodeId, Resources>& free() const { return free_; }
  const std::map<NodeId, const Node*>& nodes() const { return nodes_; }

 private:
  std::map<NodeId, Resources> free_;
  std::map<NodeId, const Node*> nodes_;
};

// May `job` use `node` at all (type, selectors)? It may come to, even if not now.
bool may_use(const Job& job, const Node& node);
// … and now: it is schedulable, and the job does not avoid it.
bool admits(const Job& job, const Node& node);

// How many GPUs of a type the job's queue may still take; "*": of all types together.
using TypeRoom = std::function<Gpus(const std::string& gpu_type)>;

// What pods of a job that were placed earlier in the same round have fixed for the rest.
struct PlacedSoFar {
  std::string gpu_type;
  NodeId node;
};

// Places `pods` pods of `job`: one GPU type unless job.mix, the type it already holds if any; nodes
// that it already uses first, then the fullest that fit (best fit), ties by name. Takes the
// resources from `free`. Nothing when they do not all fit; then `free` is unchanged. `room`: what
// the queue allows.
std::optional<std::vector<Placement>> place(const Job& job, std::int64_t pods, FreeMap& free,
                                            const TypeRoom& room, const PlacedSoFar& so_far = {});

// How many pods of `job` fit now, over all nodes of its best type.
std::int64_t pods_that_fit(const Job& job, const FreeMap& free);

}  // namespace rubato::sched
