// Jobs that say how near to each other their pods are to be.
#include "tests/unit/scheduler/small_clusters.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Node in(const std::string& zone, const std::string& rack, Node node) {
  if (!zone.empty()) node.domains["zone"] = zone;
  if (!rack.empty()) node.domains["rack"] = rack;
  return node;
}

Job near(Job job, const std::string& level, bool required) {
  job.topology = Topology{level, required};
  return job;
}

ClusterState zones_and_racks(std::vector<Node> nodes, std::vector<Job> jobs) {
  ClusterState state = cluster(std::move(nodes), std::move(jobs));
  state.levels = {"zone", "rack"};
  return state;
}

// Where the pods come that a plan gives, and how many.
std::map<NodeId, int> pods_given(const Plan& plan) {
  std::map<NodeId, int> nodes;
  for (const Action& action : plan.actions)
    for (const Placement& placement : action.add) ++nodes[placement.node];
  return nodes;
}

std::vector<Node> nodes_of_two_racks(Gpus free_of_second) {
  return {in("a", "1", node("n1", 2, 2)), in("a", "2", node("n2", 2, 2)),
          in("a", "2", node("n3", 2, free_of_second))};
}

TEST(Topology, RequiredIsOneDomainOrNothing) {
  const auto state = zones_and_racks(nodes_of_two_racks(2), {near(job("a", 3, 3), "rack", true)});
  EXPECT_EQ(pods_given(make_plan(state, {})), (std::map<NodeId, int>{{"n2", 2}, {"n3", 1}}));
  const auto full = zones_and_racks(nodes_of_two_racks(0), {near(job("a", 3, 3), "rack", true)});
  const Plan plan = make_plan(full, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(told(full, plan, "a").outcome, Outcome::kNotNow);
  EXPECT_TRUE(told(full, plan, "a")
                  .message.starts_with("needs 3 more GPUs in one rack, 2 are free for it; "));
}

TEST(Topology, PreferredIsAsNearAsThereIsRoom) {
  EXPECT_EQ(pods_given(make_plan(
                zones_and_racks(nodes_of_two_racks(2), {near(job("a", 3, 3), "rack", false)}), {})),
            (std::map<NodeId, int>{{"n2", 2}, {"n3", 1}}));
  // No rack has three, the zone has.
  const auto spread = pods_given(
      make_plan(zones_and_racks({in("a", "1", node("n1", 2, 2)), in("b", "1", node("n2", 2, 2)),
                                 in("a", "2", node("n3", 1, 1))},
                                {near(job("a", 3, 3), "rack", false)}),
                {}));
  EXPECT_EQ(spread, (std::map<NodeId, int>{{"n1", 2}, {"n3", 1}}));
  // No zone has five; the pods are in as few racks as can be.
  const auto wide = pods_given(
      make_plan(zones_and_racks({in("a", "1", node("n1", 1, 1)), in("a", "2", node("n2", 3, 3)),
                                 in("b", "1", node("n3", 2, 2))},
                                {near(job("a", 5, 5), "rack", false)}),
                {}));
  EXPECT_EQ(wide, (std::map<NodeId, int>{{"n1", 1}, {"n2", 3}, {"n3", 1}}));
}

TEST(Topology, RacksOfOneNameInTwoZonesAreTwo) {
  const auto state =
      zones_and_racks({in("a", "1", node("n1", 2, 2)), in("b", "1", node("n2", 2, 2))},
                      {near(job("a", 3, 3), "rack", true)});
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNever);
}

TEST(Topology, TheFullestDomainThatHoldsItIsTakenAndANodeBeforeSeveral) {
  const Job a = near(job("a", 2, 2), "rack", true);
  EXPECT_EQ(pods_given(make_plan(
                zones_and_racks({in("a", "1", node("n1", 8, 8)), in("a", "2", node("n2", 2, 1)),
                                 in("a", "2", node("n3", 2, 1)), in("a", "1", node("n4", 8, 1))},
                                {a}),
                {})),
            (std::map<NodeId, int>{{"n1", 2}}));
  EXPECT_EQ(pods_given(make_plan(
                zones_and_racks({in("a", "1", node("n1", 8, 1)), in("a", "2", node("n2", 2, 1)),
                                 in("a", "2", node("n3", 2, 1)), in("a", "1", node("n4", 8, 1)),
                                 in("a", "1", node("n5", 8, 1))},
                                {a}),
                {})),
            (std::map<NodeId, int>{{"n2", 1}, {"n3", 1}}));
}

TEST(Topology, ARunningJobGrowsWhereItIs) {
  const std::vector<Node> nodes{in("a", "1", node("n1", 2, 1)), in("a", "1", node("n2", 2, 1)),
                                in("a", "2", node("n3", 8, 8))};
  const auto state = zones_and_racks(nodes, {near(running("a", 1, 8, {"n1"}), "rack", true)});
  EXPECT_EQ(pods_given(make_plan(state, {})), (std::map<NodeId, int>{{"n1", 1}, {"n2", 1}}));
  const auto prefers = zones_and_racks(nodes, {near(running("a", 1, 3, {"n1"}), "rack", false)});
  EXPECT_EQ(pods_given(make_plan(prefers, {})), (std::map<NodeId, int>{{"n1", 1}, {"n2", 1}}));
}

// In the round of its start it grows there, too.
TEST(Topology, AStartGrowsInItsDomain) {
  const auto state =
      zones_and_racks({in("a", "1", node("n1", 2, 2)), in("a", "2", node("n2", 3, 3))},
                      {near(job("a", 1, 8), "rack", true)});
  EXPECT_EQ(pods_given(make_plan(state, {})).size(), 1u);
}

TEST(Topology, WhatNoDomainHoldsNeverFitsAndSaysWhatHelps) {
  const auto state = zones_and_racks(nodes_of_two_racks(2), {near(job("a", 5, 8), "rack", true)});
  const Told verdict = told(state, "a");
  EXPECT_EQ(verdict.outcome, Outcome::kNever);
  EXPECT_EQ(
      verdict.message,
      "needs 5 GPUs in one rack; the nodes it may use have 4 in one rack: lower spec.gpus.min "
      "to 4, or set spec.topology.mode to preferred");
  const auto none =
      zones_and_racks({in("a", "", node("n1", 4, 4))}, {near(job("a", 1, 1), "rack", true)});
  EXPECT_EQ(
      told(none, "a").message,
      "needs 1 GPU in one rack; no node that it may use in a rack can hold a pod of it: let it "
      "use others, or add some");
}

Job urgent(Job job) {
  job.priority = 10;
  return job;
}

// Room is made in one rack, and nobody loses pods elsewhere.
TEST(Topology, RoomIsMadeInOneDomain) {
  const std::vector<Node> nodes{in("a", "1", node("n1", 2, 0)), in("a", "2", node("n2", 2, 0)),
                                in("a", "1", node("n3", 2, 0)), in("a", "2", node("n4", 2, 1))};
  const auto state =
      zones_and_racks(nodes, {running("w", 2, 2, {"n1", "n1"}), running("x", 2, 2, {"n2", "n2"}),
                              running("y", 2, 2, {"n3", "n3"}), running("z", 1, 1, {"n4"}),
                              urgent(near(job("a", 3, 3), "rack", true))});
  const Plan plan = make_plan(state, {});
  std::set<JobId> stopped;
  for (const Action& action : plan.actions) stopped.insert(action.job);
  EXPECT_EQ(stopped, (std::set<JobId>{"x"}));
}

// Whoever is stopped makes room that helps: on nodes of a type that the job may use.
TEST(Preemption, SparesWhoWouldNotHelp) {
  Job other = running("b", 1, 1, {"n2"});
  other.held[0].gpu_type = "B";
  Job wanting = urgent(job("c", 1, 1));
  wanting.allow = {"A"};
  const auto state = cluster({node("n1", 1, 0), node("n2", 1, 0, "B")},
                             {running("a", 1, 1, {"n1"}), other, wanting});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "a");
}

// Of those that are lower the first that are not needed after all are spared.
TEST(Preemption, SparesWhoIsNotNeeded) {
  Job wanting = urgent(job("c", 2, 2));
  wanting.one_node = true;
  const auto state =
      cluster({node("n1", 2, 0), node("n2", 1, 0)},
              {running("a", 2, 2, {"n1", "n1"}), running("b", 1, 1, {"n2"}), wanting});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "a");
}

}  // namespace
}  // namespace rubato::sched
