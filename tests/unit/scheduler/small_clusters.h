// Clusters of a few nodes, for the tests of plans.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <string>
#include <utility>
#include <vector>

namespace rubato::sched {

inline Node node(const std::string& id, Gpus total, Gpus free, const std::string& type = "A") {
  return {.id = id, .gpu_type = type, .gpus_total = total, .free = {free, 64000, 1 << 30}};
}

inline Job job(const std::string& id, Gpus min, Gpus max) {
  Job j;
  j.id = j.name = id;
  j.queue = "default";
  j.min = min;
  j.max = max;
  j.per_pod = {1, 100, 1 << 20};
  return j;
}

inline Job running(const std::string& id, Gpus min, Gpus max, const std::vector<NodeId>& nodes) {
  Job j = job(id, min, max);
  j.started = true;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    j.held.push_back({static_cast<std::int64_t>(i), nodes[i], "A", 1, false, false});
  }
  return j;
}

inline ClusterState cluster(std::vector<Node> nodes, std::vector<Job> jobs) {
  ClusterState state;
  state.nodes = std::move(nodes);
  state.jobs = std::move(jobs);
  state.queues["default"] = {.name = "default"};
  return state;
}

}  // namespace rubato::sched
