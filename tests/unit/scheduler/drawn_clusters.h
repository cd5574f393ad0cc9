// Small clusters by chance whose books are right: what pods hold is not free, and each was placed
// by a plan. For the tests of what is said about plans.
#pragma once

#include "common/rng.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>
#include <string>
#include <vector>

namespace rubato::sched {

// Does what the plan says; what is to leave is leaving then.
inline void obey(const Plan& plan, ClusterState& state) {
  for (const Action& action : plan.actions) {
    Job& job = *std::ranges::find(state.jobs, action.job, &Job::id);
    for (Held& held : job.held)
      held.leaving = held.leaving || std::ranges::count(action.remove, held.ordinal) > 0;
    if (action.kind == ActionKind::kStart) job.guest_of = action.shares_with;
    for (const Placement& placement : action.add) {
      Resources taken = job.per_pod;
      if (!action.shares_with.empty()) taken.gpus = 0;
      std::ranges::find(state.nodes, placement.node, &Node::id)->free -= taken;
      job.held.push_back({.ordinal = std::ssize(job.held),
                          .node = placement.node,
                          .gpu_type = placement.gpu_type,
                          .gpus = placement.gpus,
                          .cell = placement.cell});
    }
    job.started = std::ranges::any_of(job.held, [](const Held& held) { return !held.leaving; });
  }
}

// Plans follow each other, and what is told to leave leaves between two of them, until nothing
// changes any more.
inline ClusterState at_rest(ClusterState state, const PolicyConfig& config, int rounds,
                            TimeMs round_ms = 1'000'000) {
  for (int round = 0; round < rounds; ++round) {
    const Plan plan = make_plan(state, config);
    if (plan.actions.empty()) return state;
    obey(plan, state);
    state.now_ms += round_ms;
    for (Job& job : state.jobs) {
      for (const Held& held : job.held)
        if (held.leaving) std::ranges::find(state.nodes, held.node, &Node::id)->free += job.per_pod;
      std::erase_if(job.held, [](const Held& held) { return held.leaving; });
      if (!job.held.empty()) job.allocated_ms = std::max<TimeMs>(job.allocated_ms, 0);
    }
  }
  return state;
}

inline Job drawn_job(Rng& rng, const std::string& id, const ClusterState& state) {
  const Gpus per_pod = rng.chance(0.6) ? 1 : 1 + static_cast<Gpus>(rng.below(4));
  const Gpus min = 1 + static_cast<Gpus>(rng.below(8));
  Job j = job(id, min, min + static_cast<Gpus>(rng.below(6)));
  j.queue = rng.chance(0.5) ? "default" : "other";
  j.per_pod.gpus = per_pod;
  j.priority = static_cast<std::int64_t>(rng.below(3));
  j.queued_at = static_cast<double>(rng.below(10));
  if (rng.chance(0.3)) j.shape = Shape::kPowersOfTwo;
  if (rng.chance(0.3)) j.allow = {rng.chance(0.5) ? "A" : rng.chance(0.5) ? "B" : "C"};
  j.mix = rng.chance(0.2);
  j.one_node = rng.chance(0.2);
  if (rng.chance(0.2)) {
    j.eligible.emplace();
    for (const Node& node : state.nodes)
      if (rng.chance(0.5)) j.eligible->insert(node.id);
  }
  if (rng.chance(0.1)) j.avoid = {state.nodes[rng.below(state.nodes.size())].id};
  if (rng.chance(0.7)) j.duration_ms = j.remaining_ms = static_cast<TimeMs>(rng.below(10'000'000));
  return j;
}

inline void draw_quotas(Rng& rng, Queue& queue) {
  for (const char* type : {"*", "A", "B"}) {
    if (!rng.chance(0.3)) continue;
    Quota& quota = queue.quotas[type];
    quota.guaranteed = static_cast<Gpus>(rng.below(8));
    if (rng.chance(0.6)) quota.limit = quota.guaranteed + static_cast<Gpus>(rng.below(4));
  }
  queue.borrowing = rng.chance(0.8);
}

// "other" may be a part of "default", or both of a third.
inline void draw_parents(Rng& rng, ClusterState& state) {
  if (rng.chance(0.5)) return;
  const std::string whole = rng.chance(0.5) ? "default" : "whole";
  if (whole == "whole") {
    draw_quotas(rng, state.queues[whole] = {.name = whole});
    state.queues["default"].parent = whole;
  }
  state.queues["other"].parent = rng.chance(0.3) ? "default" : whole;
  state.queues["other"].of_one_user = rng.chance(0.3);
}

// Zones and racks, of which some nodes are in none.
inline void draw_domains(Rng& rng, ClusterState& state) {
  if (rng.chance(0.4)) return;
  state.levels = {"zone", "rack"};
  for (Node& node : state.nodes)
    for (const std::string& level : state.levels)
      if (rng.chance(0.9)) node.domains[level] = std::to_string(rng.below(2));
}

inline void draw_topology(Rng& rng, const ClusterState& state, Job& job) {
  if (state.levels.empty() || rng.chance(0.6)) return;
  job.topology = Topology{state.levels[rng.below(2)], rng.chance(0.6)};
}

// What policies know that put two jobs on the same GPUs.
inline void draw_use(Rng& rng, ClusterState& state, Job& job) {
  if (rng.chance(0.2)) return;
  job.gpu_use = {.busy = rng.chance(0.5) ? 0.3 : 0.9,
                 .memory = Bytes{1 + static_cast<Bytes>(rng.below(12))} << 30U,
                 .beside_another = rng.chance(0.6) ? 0.97 : 0.8};
  if (rng.chance(0.3)) job.priority -= 2;
  if (rng.chance(0.7)) {  // many are of one size
    job.per_pod.gpus = 1;
    job.min = job.max = 1 + static_cast<Gpus>(rng.below(2));
  }
  for (Job& other : state.jobs) {
    if (!rng.chance(0.3) || other.id == job.id) continue;
    job.beside.push_back({other.id, rng.chance(0.5) ? 0.8 : 0.3});
    other.beside.push_back({job.id, rng.chance(0.5) ? 0.8 : 0.3});
  }
}

// Jobs that run, by two plans, and jobs that came since.
inline ClusterState drawn_cluster(std::uint64_t seed, const PolicyConfig& config) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  for (std::uint64_t i = 0, count = 1 + rng.below(5); i < count; ++i) {
    const Gpus gpus = 1 + static_cast<Gpus>(rng.below(8));
    state.nodes.push_back(node("n" + std::to_string(i), gpus, gpus, rng.chance(0.4) ? "B" : "A"));
  }
  Rng near(seed + 2'000'000);
  Rng use(seed + 3'000'000);
  draw_domains(near, state);
  state.queues["other"] = {.name = "other"};
  for (auto& [name, queue] : state.queues) draw_quotas(rng, queue);
  Rng tree(seed + 4'000'000);
  draw_parents(tree, state);
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t i = 0, count = rng.below(4); i < count; ++i) {
      state.jobs.push_back(
          drawn_job(rng, "j" + std::to_string(round) + "-" + std::to_string(i), state));
      draw_topology(near, state, state.jobs.back());
      if (config.sharing) draw_use(use, state, state.jobs.back());
    }
    if (round == 2) break;
    obey(make_plan(state, config), state);
  }
  for (Node& node : state.nodes) node.schedulable = !rng.chance(0.1);
  return state;
}

// For what holds under every policy: up to seed `first` marginalThroughput, then some seeds of the
// default, and a few of each.
constexpr std::uint64_t kSeedsOfDefault = 60;
constexpr std::uint64_t kSeedsOfEach = 4;
inline std::uint64_t seeds_of_all_policies(std::uint64_t first) {
  return first + kSeedsOfDefault + kSeedsOfEach * all_policies().size();
}
inline PolicyConfig policy_of_seed(std::uint64_t seed, std::uint64_t first) {
  if (seed <= first) return {.policy = "marginalThroughput"};
  if (seed <= first + kSeedsOfDefault) return {.policy = kDefaultPolicy};
  const std::vector<Descriptor> all = all_policies();
  return {.policy = all[seed % all.size()].name};
}

// Cells of some queues, and jobs in them.
inline void draw_cells(Rng& rng, ClusterState& state, const PolicyConfig& config) {
  if (rng.chance(0.4)) return;
  std::vector<std::string> levels = state.levels;
  levels.emplace_back(kNodeLevel);
  for (auto& [name, queue] : state.queues) {
    queue.created = static_cast<double>(rng.below(3));
    for (const char* type : {"A", "B"})
      if (rng.chance(0.5))
        queue.cells.push_back(
            {type, levels[rng.below(levels.size())], 1 + static_cast<std::int64_t>(rng.below(2))});
  }
  obey(make_plan(state, config), state);
}

// Nodes run out of CPU, memory or pods before they run out of GPUs: strangers hold the rest.
inline void draw_scarce(Rng& rng, ClusterState& state) {
  for (Node& node : state.nodes) {
    node.free.others[0] = rng.chance(0.6) ? static_cast<std::int64_t>(rng.below(6)) : 110;
    if (rng.chance(0.5)) node.free.cpu = 100 * static_cast<MilliCpu>(rng.below(12));
    if (rng.chance(0.5)) node.free.memory = static_cast<Bytes>(rng.below(12)) << 20U;
  }
  for (Job& job : state.jobs) {
    job.per_pod.others[0] = 1;
    job.per_pod.cpu = 100 * static_cast<MilliCpu>(rng.below(4));
  }
}

// As if it were never there; what its pods held is free.
inline ClusterState without(ClusterState state, const JobId& id) {
  const auto job = std::ranges::find(state.jobs, id, &Job::id);
  for (const Held& held : job->held)
    for (Node& node : state.nodes)
      if (node.id == held.node) node.free += job->per_pod;
  state.jobs.erase(job);
  return state;
}

inline const Verdict& verdict_of(const Plan& plan, const ClusterState& state, const JobId& id) {
  return plan.verdicts.at(
      static_cast<std::size_t>(std::ranges::find(state.jobs, id, &Job::id) - state.jobs.begin()));
}

}  // namespace rubato::sched
