// Topology: the levels that this installation knows, the domains that nodes are in, and what a job
// asks of them. Levels are the administrator's words for node labels; jobs name them
// (spec.topology.level).
#pragma once

#include "common/result.h"
#include "kube/objects/node.h"
#include "operator/api/training_job.h"
#include "scheduler/model/cluster_state.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::control {

// Of nodes whose label `key` has one value.
struct TopologyLevel {
  std::string name;  // what jobs call it: "rack"
  std::string key;
  bool operator==(const TopologyLevel&) const = default;
};

// From "NAME=KEY", the widest level first. An error says which is wrong and what is expected.
Result<std::vector<TopologyLevel>> parse_topology_levels(const std::vector<std::string>& levels);

// By the names of levels; none where the node lacks the label, or it is empty.
std::map<std::string, std::string> domains_of(const kube::Node& node,
                                              const std::vector<TopologyLevel>& levels);

// What its label says; "unknown" where the node lacks the label, or it is empty. As long as the
// node lives.
std::string_view gpu_type_of(const kube::Node& node, const std::string& label);

// Into `seen`: what it asks for, or why it cannot be had here.
void describe_topology(const api::TrainingJob& job, const std::vector<TopologyLevel>& levels,
                       sched::Job& seen);

}  // namespace rubato::control
