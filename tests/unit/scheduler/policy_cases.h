// For the tests of single policies: what a policy makes of a state, which others make the same of
// it, and random states. A policy's reference is in its own test, and shares no code with it.
#pragma once

#include "common/rng.h"
#include "scheduler/model/sizes.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::sched {

using Parameters = std::map<std::string, double>;
using Sizes = std::map<JobId, Gpus>;

constexpr std::uint64_t kDrawnStates = 300;

inline Targets targets_of(const ClusterState& state, const std::string& policy,
                          const Parameters& parameters = {}) {
  return make_policy(policy, parameters).value()->decide(Problem(state));
}

inline std::vector<JobId> order_of(const ClusterState& state, const std::string& policy,
                                   const Parameters& parameters = {}) {
  std::vector<JobId> ids;
  for (const JobIndex j : targets_of(state, policy, parameters).order)
    ids.push_back(state.jobs[j.value].id);
  return ids;
}

// What each job holds once the plan is done; who holds nothing is not in it.
inline Sizes sizes_after(const ClusterState& state, const std::string& policy,
                         const Parameters& parameters = {}) {
  Sizes sizes;
  for (const Job& job : state.jobs) sizes[job.id] = effective_gpus(job);
  for (const Action& action :
       make_plan(state, {.policy = policy, .parameters = parameters}).actions)
    sizes[action.job] += std::ssize(action.add) - std::ssize(action.remove);
  std::erase_if(sizes, [](const auto& size) { return size.second == 0; });
  return sizes;
}

// All but what jobs hold that take no part.
inline Gpus gpus_there(const ClusterState& state) {
  Gpus gpus = 0;
  for (const Node& n : state.nodes) gpus += n.gpus_total;
  for (const Job& j : state.jobs)
    if (!j.refused.empty()) gpus -= effective_gpus(j);
  return gpus;
}

// Which of the simpler policies give everybody as much as this one does.
inline std::vector<std::string> who_plans_the_same(const ClusterState& state,
                                                   const std::string& policy) {
  std::vector<std::string> same;
  for (const char* simpler :
       {"fifo", "fifoBackfill", "sjf", "srtf", "srsf", "las", "tiresias", "marginalThroughput"})
    if (sizes_after(state, simpler) == sizes_after(state, policy)) same.emplace_back(simpler);
  return same;
}
using Nobody = std::vector<std::string>;

// Up to seven jobs of three queues, some of which run; all that a policy looks at is drawn.
inline ClusterState drawn(std::uint64_t seed) {
  Rng rng(seed);
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::int64_t>(rng.below(bound));
  };
  const std::int64_t nodes = 1 + below(3);
  std::vector<Node> all;
  for (std::int64_t i = 0; i < nodes; ++i) all.push_back(node("n" + std::to_string(i), 8, 8));
  ClusterState state = cluster(all, {});
  state.now_ms = 10'000'000;
  const std::int64_t jobs = 1 + below(7);
  for (std::int64_t i = 0; i < jobs; ++i) {
    const Gpus min = 1 + below(4);
    Job j = job("j" + std::to_string(i), min, min + below(6));
    j.name = "team/train-" + std::to_string(below(3)) + "-" + std::to_string(i);
    j.queue = "q" + std::to_string(below(3));
    j.priority = rng.chance(0.3) ? 1 : 0;
    j.queued_at = static_cast<double>(below(5) * 1000);
    j.per_pod = {1, 1000 * below(6), (1 << 20) * below(200)};
    j.attained_gpu_ms = below(5) * 1'000'000;
    if (rng.chance(0.7)) j.duration_ms = 1'000'000 * (1 + below(9));
    if (rng.chance(0.7)) j.remaining_ms = 1'000'000 * (1 + below(9));
    if (rng.chance(0.7)) j.deadline_ms = 10'000'000 + 1'000'000 * below(4);
    if (rng.chance(0.2)) j.refused = "suspended";
    Node& where = state.nodes[static_cast<std::size_t>(below(static_cast<std::uint64_t>(nodes)))];
    if (rng.chance(0.4) && where.free.gpus >= min) {
      j.started = true;
      j.allocated_ms = 10'000'000 - below(4) * 500'000;
      for (Gpus g = 0; g < min; ++g) j.held.push_back({g, where.id, where.gpu_type, 1});
      for (Gpus g = 0; g < min; ++g) where.free -= j.per_pod;
    }
    state.jobs.push_back(std::move(j));
  }
  for (const char* queue : {"q0", "q1", "q2"})
    state.queues[queue] = {.name = queue, .weight = rng.chance(0.5) ? 2.0 : 1.0};
  return state;
}

}  // namespace rubato::sched
