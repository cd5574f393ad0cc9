// On which nodes `rubato` has jobs whose goodput tables say what a node more costs.
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <cmath>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Four GPUs on one node are as fast as four, on two as one and a half.
Job losing_by_nodes(Job job) {
  for (const Gpus n : {1, 2, 3, 4}) job.goodput.push_back({"A", n, 1, static_cast<double>(n)});
  for (const Gpus n : {2, 3, 4}) job.goodput.push_back({"A", n, 2, 0.375 * static_cast<double>(n)});
  return job;
}

Plan rubato_plan(const ClusterState& state) { return make_plan(state, {.policy = "rubato"}); }

ClusterState spread_over_two_nodes(TimeMs remaining_ms) {
  return cluster(
      {node("n1", 4, 2), node("n2", 4, 2)},
      {lasting(losing_by_nodes(running("a", 1, 4, {"n1", "n1", "n2", "n2"})), remaining_ms)});
}

TEST(RubatoPlaces, WhoIsOnMoreNodesThanItNeedsMovesWhereThatPays) {
  ClusterState state = spread_over_two_nodes(10'000'000);
  const Plan plan = rubato_plan(state);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].remove.size(), 2u);
  EXPECT_TRUE(rubato_plan(spread_over_two_nodes(20'000)).actions.empty()) << "soon done";
  state.jobs[0].goodput.clear();
  EXPECT_TRUE(rubato_plan(state).actions.empty()) << "nothing is known of nodes";
}

// When those pods have left it comes to its size on the node where it is.
TEST(RubatoPlaces, ItGrowsAgainOnOneNode) {
  ClusterState state = spread_over_two_nodes(10'000'000);
  std::erase_if(state.jobs[0].held, [](const Held& held) { return held.node == "n2"; });
  state.nodes[1].free = state.nodes[0].free;
  state.nodes[1].free.gpus = 4;
  const Plan plan = rubato_plan(state);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kGrow);
  for (const Placement& placement : plan.actions[0].add) EXPECT_EQ(placement.node, "n1");
}

TEST(RubatoPlaces, WhoMayNotChangeNowStaysWhereItIs) {
  ClusterState state = spread_over_two_nodes(10'000'000);
  state.jobs[0].settled = false;
  EXPECT_TRUE(rubato_plan(state).actions.empty());
  state = spread_over_two_nodes(10'000'000);
  state.jobs.push_back(lasting(losing_by_nodes(running("b", 1, 2, {"n1", "n1"})), 10'000'000));
  state.jobs.push_back(lasting(losing_by_nodes(running("c", 1, 2, {"n2", "n2"})), 10'000'000));
  for (Node& one : state.nodes) one.free.gpus = 0;
  EXPECT_TRUE(rubato_plan(state).actions.empty()) << "no node has room for it";
}

// Jobs of which half run, on any nodes, and what they lose by a second one; of half of them the
// work left is known.
ClusterState drawn_with_tables(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  for (const char* name : {"n1", "n2", "n3"}) state.nodes.push_back(node(name, 4, 4));
  for (std::uint64_t i = 0; i < 2 + rng.below(8); ++i) {
    Job one = job("j" + std::to_string(i), 1, rng.chance(0.5) ? 4 : 12);
    const double kept = 0.3 + static_cast<double>(rng.below(70)) / 100;
    for (Gpus n = 1; n <= 8; ++n) {
      const double speed = std::pow(n, 0.5 + kept / 2);
      if (n <= 4) one.goodput.push_back({"A", n, 1, speed});
      if (n > 1) one.goodput.push_back({"A", n, 2, kept * speed});
    }
    if (rng.chance(0.5)) one.remaining_ms = static_cast<TimeMs>(10'000 << rng.below(12));
    const std::int64_t pods = rng.chance(0.5) ? 4 : 0;
    for (std::int64_t pod = 0; pod < pods; ++pod) {
      Node& on = state.nodes[rng.below(3)];
      if (on.free.gpus == 0) break;
      one.started = true;
      one.held.push_back({pod, on.id, "A", 1});
      on.free -= one.per_pod;
    }
    state.jobs.push_back(one);
  }
  return state;
}

// One goes on: two equal jobs, of which the one that moves is stopped for it, and then comes
// second.
TEST(RubatoPlaces, ComeToRest) {
  const PolicyConfig config{.policy = "rubato"};
  int restless = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed)
    if (!make_plan(at_rest(drawn_with_tables(seed), config, 40, 0), config).actions.empty())
      ++restless;
  EXPECT_LE(restless, 1);
}

}  // namespace
}  // namespace rubato::sched
