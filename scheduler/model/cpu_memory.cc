#include "scheduler/model/cpu_memory.h"

#include <algorithm>

namespace rubato::sched {

std::optional<CpuMemory> proportional_share(const Node& node) {
  if (!node.total || node.gpus_total <= 0) return std::nullopt;
  return CpuMemory{node.total->cpu / node.gpus_total, node.total->memory / node.gpus_total};
}

NodesById nodes_by_id(const ClusterState& state) {
  NodesById nodes;
  for (const Node& node : state.nodes) nodes.emplace(node.id, &node);
  return nodes;
}

std::optional<CpuMemory> proportional_share(const NodesById& nodes, const GpusOnNodes& places) {
  std::optional<CpuMemory> least;
  for (const auto& [id, gpus] : places) {
    const auto node = nodes.find(id);
    const auto here = node == nodes.end() ? std::nullopt : proportional_share(*node->second);
    if (!here) return std::nullopt;
    if (!least) least = here;
    least = CpuMemory{std::min(least->cpu, here->cpu), std::min(least->memory, here->memory)};
  }
  return least;
}

CpuMemoryShares proportional_shares(const ClusterState& state,
                                    const std::vector<GpusOnNodes>& places) {
  CpuMemoryShares shares;
  const NodesById nodes = nodes_by_id(state);
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    if (const auto share = proportional_share(nodes, places[i]))
      shares.emplace(state.jobs[i].id, *share);
  return shares;
}

bool are_within(const CpuMemoryShares& shares, const ClusterState& state,
                const std::vector<GpusOnNodes>& places) {
  std::map<NodeId, CpuMemory> taken;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const auto share = shares.find(state.jobs[i].id);
    if (share == shares.end()) continue;
    for (const auto& [id, gpus] : places[i]) {
      taken[id].cpu += share->second.cpu * gpus;
      taken[id].memory += share->second.memory * gpus;
    }
  }
  return std::ranges::all_of(state.nodes, [&](const Node& node) {
    const auto of_node = taken.find(node.id);
    return of_node == taken.end() || (node.total && of_node->second.cpu <= node.total->cpu &&
                                      of_node->second.memory <= node.total->memory);
  });
}

double part_of_full_speed(const Job& job, const CpuMemory& per_gpu) {
  if (job.sensitivity.empty()) return 1;
  const auto of = [](std::int64_t given, std::int64_t asked) {
    return given >= asked ? 1 : static_cast<double>(given) / static_cast<double>(asked);
  };
  double best = 0;
  for (const SensitivityPoint& point : job.sensitivity)
    best = std::max(best, point.part * std::min(of(per_gpu.cpu, point.per_gpu.cpu),
                                                of(per_gpu.memory, point.per_gpu.memory)));
  return best;
}

}  // namespace rubato::sched
