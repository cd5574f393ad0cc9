// Where nodes are, and what it costs a job that its pods are far from each other.
#include "scheduler/sim/engine.h"

#include <algorithm>
#include <set>

namespace rubato::sched::sim {

void Engine::put_into_domains() {
  for (const DomainSize& size : cluster_.domains) {
    state_.levels.push_back(size.level);
    for (std::size_t i = 0; i < state_.nodes.size(); ++i)
      state_.nodes[i].domains[size.level] =
          std::to_string(static_cast<std::int64_t>(i) / size.nodes);
  }
}

void Engine::find_mean_traffic() {
  double bytes = 0, gpus = 0;
  for (const TraceJob& job : trace_) {
    if (job.traffic <= 0) continue;
    bytes += job.traffic;
    gpus += static_cast<double>(job.request);
  }
  mean_traffic_ = gpus > 0 ? bytes / gpus : 0;
}

// Of its speed where all its pods are on one node.
double Engine::part_at_distance(std::size_t index) const {
  if (options_.distances.empty()) return 1;
  std::map<std::string, std::set<std::string>> domains;  // by level
  for (const Held& held : state_.jobs[runs_[index].position].held) {
    if (!held.stays()) continue;
    const Node& node = state_.nodes[node_of_.at(held.node)];
    domains[kNodeLevel].insert(node.id);
    for (const auto& [level, name] : node.domains) domains[level].insert(name);
  }
  double slower = 1;
  for (const auto& [level, factor] : options_.distances)
    if (domains[level].size() > 1) slower = std::max(slower, factor);
  const TraceJob& job = trace_[index];
  const double own = job.traffic / static_cast<double>(job.request);
  return 1 / (1 + (slower - 1) * (job.traffic > 0 ? own / mean_traffic_ : 1));
}

}  // namespace rubato::sched::sim
