#include "scheduler/node_counts.h"

#include "scheduler/model/problem.h"

#include <optional>
#include <utility>

namespace rubato::sched {
namespace {

void count_node(const Node& node, NodesByType& nodes) {
  const Resources whole = whole_of(node);
  ++nodes[node.gpu_type][{whole.gpus, whole.cpu, whole.memory}];
}

// The way to it from the widest level; none: it is in none of that level.
std::optional<std::vector<std::string>> domain_around(const std::vector<std::string>& levels,
                                                      const Node& node, const std::string& needed) {
  if (needed.empty() || !node.domains.contains(needed)) return std::nullopt;
  std::vector<std::string> way;
  for (const std::string& level : levels) {
    const auto found = node.domains.find(level);
    way.push_back(found == node.domains.end() ? "" : found->second);
    if (level == needed) break;
  }
  return way;
}

}  // namespace

std::string level_needed(const Job& job) { return job.needs_domain() ? job.topology->level : ""; }

NodeCounts::NodeCounts(const ClusterState& state) : state_(state) {
  for (const Node& node : state.nodes) by_id_.emplace(node.id, &node);
}

const CountedNodes& NodeCounts::all(const Job& job) {
  const std::string level = level_needed(job);
  const auto [at, is_new] = all_.try_emplace(level);
  if (is_new) {
    std::vector<const Node*> nodes;
    nodes.reserve(state_.nodes.size());
    for (const Node& node : state_.nodes) nodes.push_back(&node);
    at->second = counted_nodes(nodes, level);
  }
  return at->second;
}

CountedNodes NodeCounts::eligible(const Job& job) {
  if (!job.eligible) return all(job);
  std::vector<const Node*> nodes;
  for (const NodeId& id : *job.eligible)
    if (const auto found = by_id_.find(id); found != by_id_.end()) nodes.push_back(found->second);
  return counted_nodes(nodes, level_needed(job));
}

CountedNodes NodeCounts::counted_nodes(const std::vector<const Node*>& nodes,
                                       const std::string& level) const {
  CountedNodes counted;
  std::map<std::vector<std::string>, NodesByType> domains;
  for (const Node* node : nodes) {
    count_node(*node, counted.all);
    if (const auto domain = domain_around(state_.levels, *node, level))
      count_node(*node, domains[*domain]);
  }
  for (auto& [way, of_domain] : domains) counted.domains.insert(std::move(of_domain));
  return counted;
}

}  // namespace rubato::sched
