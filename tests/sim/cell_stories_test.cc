// Stories of queues that have nodes of their own.
#include "tests/sim/told_stories.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

// Whoever comes first could have both nodes; one is the team's.
Scenario a_team_with_a_node() {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}};
  scenario.queues = {{"default", 0}, {.name = "team", .cells = 1}};
  scenario.jobs = {training("first", 1, 4), training("teams", 2, 2)};
  scenario.jobs[0].priority_class = "high";
  scenario.jobs[1].queue = "team";
  scenario.jobs[1].submit_at = 10s;
  return scenario;
}

std::set<std::string> cells_of(const WholeCluster& cluster, const std::string& job) {
  std::set<std::string> nodes;
  const auto found = cluster.witness().jobs().find("default/" + job);
  if (found == cluster.witness().jobs().end() || !found->second.allocation) return nodes;
  for (const api::AllocatedPod& pod : found->second.allocation->pods)
    if (pod.cell == "node") nodes.insert(pod.node);
  return nodes;
}

TEST(CellStories, AWholeNodeIsThereForItsQueueWhateverThePriorities) {
  WholeCluster cluster(a_team_with_a_node(), {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "first") == 4; }, kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "teams") == 2; }, kSoon));
  EXPECT_EQ(cells_of(cluster, "teams").size(), 1u);
  EXPECT_EQ(members_of(cluster, "first"), 2u) << "it trains on, on the other node";
  EXPECT_TRUE(cells_of(cluster, "first").empty());
}

// Which cell it has is in the job's allocation, so the next leader knows it.
TEST(CellStories, ANewLeaderLeavesAQueueItsCell) {
  WholeCluster cluster(a_team_with_a_node(), {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "teams") == 2; }, kSoon));
  const auto cells = cells_of(cluster, "teams");
  cluster.inject({.kind = FaultKind::kOperatorCrash, .spell = 5s, .pick = 1});
  cluster.inject({.kind = FaultKind::kPodCrash, .pick = 1});
  EXPECT_FALSE(cluster.run_until([&] { return cells_of(cluster, "teams") != cells; }, kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "teams") == 2; }, kSoon));
}

// Seed 851179: a job inside the cells of its queue was stopped for one of a higher priority that is
// too large for them, started again before it, and was stopped again, for ever.
TEST(CellStories, AJobInsideDoesNotLeaveForOneThatIsTooLargeForTheCells) {
  Scenario scenario = a_team_with_a_node();
  scenario.jobs = {training("inside", 2, 2), training("large", 4, 4)};
  for (JobPlan& job : scenario.jobs) job.queue = "team";
  scenario.jobs[1].priority_class = "high";
  scenario.jobs[1].submit_at = 10s;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "inside") == 2; }, 10s));
  EXPECT_EQ(cells_of(cluster, "inside").size(), 1u);
  const auto leaves = [&] { return cells_of(cluster, "inside").empty(); };
  EXPECT_FALSE(cluster.run_until(leaves, kSoon));
}

}  // namespace
}  // namespace rubato::sim
