// Where Sia's configurations are (Jayaram Subramanya et al., SOSP'23, section 3): GPUs of less than
// a node are on one node, more are on whole nodes. Private to this folder.
#pragma once

#include "scheduler/model/problem.h"

#include <optional>
#include <vector>

namespace rubato::sched {

// A job's configuration, to be placed.
struct ToPlace {
  JobIndex job;
  TypeIndex type;
  Gpus gpus = 0;
  bool stays = false;  // on the nodes that it holds
};

// For each of `all`, the node of each of its pods; none: it does not fit so. `room`: on each node,
// with what they hold. Who stays is there, the others come the largest first: to nodes that they
// hold, then to the fullest that has room. Where that does not fit, those of its type that stay on
// one node are moved, too. Cost: jobs times nodes.
std::vector<std::optional<std::vector<NodeIndex>>> place_configurations(
    const Problem& problem, const std::vector<ToPlace>& all,
    const Table<NodeIndex, Resources>& room);

// GPUs of the largest node of each type that takes pods; 0: there is none.
Table<TypeIndex, Gpus> largest_node_by_type(const Problem& problem);

// The nodes of the pods that stay, one a pod; none: one of them is gone.
std::optional<std::vector<NodeIndex>> nodes_held(const Problem& problem, JobIndex j);

}  // namespace rubato::sched
