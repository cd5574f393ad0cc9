// CPU and memory of nodes, shared out among the jobs whose pods are there: so much for each GPU of
// a job, on all its nodes alike. How fast that lets it be is in Job::sensitivity.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <map>
#include <optional>
#include <vector>

namespace rubato::sched {

using CpuMemoryShares = std::map<JobId, CpuMemory>;  // for each GPU
using GpusOnNodes = std::map<NodeId, Gpus>;          // of a job

// The share of one GPU on the node, as many as it has; none: Node::total is not known.
std::optional<CpuMemory> proportional_share(const Node& node);

// Nodes by their id, for what is asked of many jobs.
using NodesById = std::map<NodeId, const Node*>;
NodesById nodes_by_id(const ClusterState& state);
// The same of a job: the least of its nodes; none: it holds nothing, or one of them is not known.
std::optional<CpuMemory> proportional_share(const NodesById& nodes, const GpusOnNodes& places);

// What jobs have where nobody decides: each its proportional share. `places`: by job.
CpuMemoryShares proportional_shares(const ClusterState& state,
                                    const std::vector<GpusOnNodes>& places);

// No node gives more than it has.
bool are_within(const CpuMemoryShares& shares, const ClusterState& state,
                const std::vector<GpusOnNodes>& places);

// Of its speed where it has all that it can use: with less than a point asks for, that point's part
// falls with what is scarcer.
double part_of_full_speed(const Job& job, const CpuMemory& per_gpu);

}  // namespace rubato::sched
