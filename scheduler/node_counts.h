// The nodes of a state, counted by what they are: for what asks of many jobs whether they could
// ever be placed (scheduler/fix.h). One thread; the state outlives it.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rubato::sched {

struct WholeNode {  // whole_of
  Gpus gpus = 0;
  MilliCpu cpu = 0;
  Bytes memory = 0;
  auto operator<=>(const WholeNode&) const = default;
};
using CountOfNodes = std::map<WholeNode, std::int64_t>;
using NodesByType = std::map<std::string, CountOfNodes>;

// Nodes by what they are; of the domains of a level each kind once.
struct CountedNodes {
  NodesByType all;
  std::set<NodesByType> domains;
};

// In one domain of which the job must be; "": of none.
std::string level_needed(const Job& job);

// Counted once for all jobs that ask alike, in O(N log N) for N nodes.
class NodeCounts {
 public:
  explicit NodeCounts(const ClusterState& state);

  // With the domains of the level that the job needs. It stays where it is.
  const CountedNodes& all(const Job& job);
  // … of those that the job's selectors admit: counted at each call.
  CountedNodes eligible(const Job& job);

 private:
  CountedNodes counted_nodes(const std::vector<const Node*>& nodes, const std::string& level) const;

  const ClusterState& state_;
  std::unordered_map<std::string_view, const Node*> by_id_;
  std::map<std::string, CountedNodes> all_;  // by level
};

}  // namespace rubato::sched
