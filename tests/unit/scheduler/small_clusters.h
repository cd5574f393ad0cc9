// Clusters of a few nodes, for the tests of plans.
#pragma once

#include "scheduler/plan.h"

#include <string>
#include <utility>
#include <vector>

namespace rubato::sched {

constexpr Bytes kGib = Bytes{1} << 30U;

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

inline Job in_queue(const std::string& queue, Job job) {
  job.queue = queue;
  return job;
}

inline Job lasting(Job job, TimeMs remaining_ms) {
  job.remaining_ms = remaining_ms;
  return job;
}

inline ClusterState cluster(std::vector<Node> nodes, std::vector<Job> jobs) {
  ClusterState state;
  state.nodes = std::move(nodes);
  state.jobs = std::move(jobs);
  state.queues["default"] = {.name = "default"};
  return state;
}

// What people are told of a job by a plan of this state.
struct Told {
  Outcome outcome = Outcome::kPlaced;
  std::string reason;
  std::string message;
};
inline Told told(const ClusterState& state, const Plan& plan, const JobId& id) {
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    if (state.jobs[i].id != id) continue;
    const Explanation said = explain(plan.verdicts.at(i), state.jobs[i]);
    return {plan.verdicts[i].outcome, said.reason, said.message};
  }
  return {};
}
inline Told told(const ClusterState& state, const JobId& id) {
  return told(state, make_plan(state, {}), id);
}

}  // namespace rubato::sched
