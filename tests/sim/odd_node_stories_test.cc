// Stories of a node that is not like the others: another folder for checkpoints, another build.
#include "tests/sim/told_stories.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

const json::Value& status_of(const WholeCluster& cluster) {
  return cluster.witness().jobs().at("default/elastic").object["status"];
}

bool is_true(const WholeCluster& cluster, std::string_view type) {
  const auto& conditions = status_of(cluster)["conditions"].items();
  return std::ranges::any_of(conditions, [&](const json::Value& each) {
    return each["type"].string_or("") == type && each["status"].string_or("") == "True";
  });
}

// n1 has a folder of its own. The job goes on there when n0 is gone, and writes its checkpoints
// there; when both begin anew it is the newest of all that counts, and who cannot read it follows.
TEST(OddNodeStories, TheNewestCheckpointOfAnyNodeCounts) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.nodes[1].has_own_checkpoints = true;
  scenario.jobs = {training("elastic", 1, 2)};
  WholeCluster cluster(scenario, {.listening = true});
  const auto saved = [&] { return status_of(cluster)["progress"]["checkpointStep"].int_or(0); };
  const auto trains = [&](std::size_t pods) {
    return [&cluster, pods] { return members_of(cluster, "elastic") == pods; };
  };
  cluster.start();
  ASSERT_TRUE(cluster.run_until(trains(2), 2 * kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return saved() > 0; }, 2min));
  cluster.inject({FaultKind::kPowerCut, 0s, 90s, 0, 0});
  ASSERT_TRUE(cluster.run_until(trains(1), kSoon));
  const std::int64_t before = saved();
  ASSERT_TRUE(cluster.run_until([&] { return saved() > before + 20; }, 2min));
  ASSERT_TRUE(cluster.run_until(trains(2), 3min));
  const std::int64_t newest = saved();
  for (int i = 0; i < 2; ++i) cluster.inject({FaultKind::kPowerCut, 0s, 3s, 0, 0});
  ASSERT_TRUE(cluster.run_until([&] { return is_true(cluster, "CheckpointNotShared"); }, 3min));
  ASSERT_TRUE(cluster.run_until(trains(2), 3min));
  EXPECT_GE(status_of(cluster)["progress"]["step"].int_or(0), newest);
}

// The agent on n1 speaks no version that an operator does: it is turned away, its node avoided,
// longer each time, and those who train train on.
TEST(OddNodeStories, ABuildWithoutACommonVersionDisturbsNobody) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.nodes[1].illness = Illness::kOtherVersion;
  WholeCluster cluster(scenario, {.listening = true});
  const auto tried = elastic_holds_on_n1(cluster, 1);
  const auto given_back = elastic_holds_on_n1(cluster, 0);
  cluster.start();
  cluster.inject({FaultKind::kCordon, 0s, kSoon, 1, 0});  // the second node comes later
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kSoon));
  ASSERT_TRUE(cluster.run_until(tried, 2 * kSoon));
  const std::uint64_t generation = cluster.world("elastic").generations();
  for (const Duration wait : {30s, 60s}) {
    ASSERT_TRUE(cluster.run_until(given_back, 2 * kJitter));
    EXPECT_FALSE(cluster.run_until(tried, wait - kGrace - 2 * kJitter));
    ASSERT_TRUE(cluster.run_until(tried, kGrace + kSoon + kJitter));
  }
  EXPECT_EQ(cluster.world("elastic").generations(), generation);
  const json::Value& avoided = status_of(cluster)["avoidedNodes"][0];
  EXPECT_EQ(avoided["reason"].string_or(""), "NoCommonVersion");
  const std::string message = avoided["message"].string_or("");
  EXPECT_NE(message.find("versions 1000 to 1000 of the protocol"), std::string::npos) << message;
}

// Whichever node it is, and wherever the job is put first: it goes to the other one.
TEST(OddNodeStories, AJobDoesNotWaitOnANodeWhoseBuildHasNoCommonVersion) {
  for (const std::size_t sick : {0, 1}) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}};
    scenario.nodes[sick].illness = Illness::kOtherVersion;
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("gang", 2, 2)};
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "gang") == 2; }, 2min)) << sick;
  }
}

// Wherever a gang is put first: where one of its pods comes and another does not, that is for the
// node, and the next try is on the others.
TEST(OddNodeStories, AGangDoesNotWaitOnANodeThatStartsNothing) {
  for (const std::uint64_t idle : {0u, 1u, 2u}) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("gang", 2, 2)};
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    cluster.inject({FaultKind::kNodeIdle, 0s, 1h, idle, 0});
    EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "gang") == 2; }, 4 * kGang))
        << "n" << idle;
  }
}

}  // namespace
}  // namespace rubato::sim
