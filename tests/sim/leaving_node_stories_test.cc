// Stories of nodes that are about to go: jobs leave them before, without a recovery.
#include "operator/control/leaving_nodes.h"
#include "tests/sim/told_stories.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

void say_maintenance(WholeCluster& cluster, const std::string& node, const std::string& at) {
  const json::Value annotations = json::Value::object({{std::string(control::kMaintenanceAt), at}});
  const json::Value patch =
      json::Value::object({{"metadata", json::Value::object({{"annotations", annotations}})}});
  ASSERT_TRUE(
      cluster.server().patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge, patch).ok());
}

std::int64_t pods_there(const WholeCluster& cluster, const std::string& node) {
  return std::ranges::count_if(cluster.witness().pods(),
                               [&](const auto& pod) { return pod.second.node == node; });
}

// A gang that fits on either of two nodes. Those who train go on until the others can take over.
TEST(LeavingNodeStories, AGangTrainsUntilItHasMovedAndTheNodeGoes) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("gang", 2, 2)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "gang") == 2; }, kSoon));
  const std::string from = held_on(cluster, "gang", "n0") == 2 ? "n0" : "n1";
  const std::string to = from == "n0" ? "n1" : "n0";
  ASSERT_EQ(held_on(cluster, "gang", from), 2);
  say_maintenance(cluster, from, "2001-01-01T00:00:00Z");
  std::size_t least = 2;
  const auto has_moved = [&] {
    least = std::min(least, members_of(cluster, "gang"));
    return held_on(cluster, "gang", to) == 2 && pods_there(cluster, from) == 0;
  };
  ASSERT_TRUE(cluster.run_until(has_moved, 3 * kSoon));
  EXPECT_EQ(least, 2u);
  const json::Value& status = cluster.witness().jobs().at("default/gang").object["status"];
  EXPECT_EQ(status["progress"]["recomputedSteps"].int_or(0), 0);
  EXPECT_EQ(status["restarts"]["infrastructure"].int_or(0), 0);
  const std::uint64_t generation = cluster.world("gang").generations();
  cluster.inject({FaultKind::kPowerCut, 0s, kSoon, from == "n0" ? 0u : 1u, 0});
  EXPECT_FALSE(cluster.run_until([&] { return held_on(cluster, "gang", from) > 0; }, 3 * kSoon));
  EXPECT_EQ(cluster.world("gang").generations(), generation);
}

// As a drain does.
void tell_to_end(WholeCluster& cluster) {
  std::vector<std::string> names;
  for (const auto& [key, pod] : cluster.witness().pods()) names.push_back(pod.name);
  for (const std::string& name : names)
    ASSERT_TRUE(cluster.server().remove(kube::types::kPod, {"default", name}, {}).ok());
}

// All that was committed was in the checkpoint that it goes on from.
void expect_nothing_lost(WholeCluster& cluster, const std::string& job, std::size_t members) {
  const auto status = [&]() -> const json::Value& {
    return cluster.witness().jobs().at("default/" + job).object["status"];
  };
  const std::int64_t generation = status()["membership"]["generation"].int_or(0);
  ASSERT_TRUE(cluster.run_until(
      [&] {
        return members_of(cluster, job) == members &&
               status()["membership"]["phase"].string_view_or("") == "Training" &&
               status()["membership"]["generation"].int_or(0) > generation;
      },
      6 * kSoon));
  EXPECT_FALSE(cluster.run_until([] { return false; }, kSoon));
  EXPECT_EQ(status()["progress"]["recomputedSteps"].int_or(-1), 0);
}

// The only node that there is: nobody can take over.
TEST(LeavingNodeStories, WhereAllPodsAreToldToEndNoStepIsLost) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("gang", 2, 2)};
  scenario.jobs[0].shape.checkpoint_every = 50'000;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "gang") == 2; }, kSoon));
  ASSERT_FALSE(cluster.run_until([] { return false; }, kSoon));
  tell_to_end(cluster);
  expect_nothing_lost(cluster, "gang", 2);
}

// It stands still, below its minimum, and nothing of it was written since.
TEST(LeavingNodeStories, AParkedJobWhosePodsAreToldToEndLosesNoStep) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.jobs = {training("elastic", 3, 3)};
  scenario.jobs[0].shape.checkpoint_every = 50'000;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, kSoon));
  ASSERT_FALSE(cluster.run_until([] { return false; }, kSoon));
  cluster.inject({FaultKind::kPowerCut, 0s, kSoon, 1, 0});
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kSoon));
  ASSERT_FALSE(cluster.run_until([] { return false; }, kJitter));
  tell_to_end(cluster);
  expect_nothing_lost(cluster, "elastic", 3);
}

// Rounds come once an hour, unless something happens: one comes when the node is to be left.
TEST(LeavingNodeStories, AnElasticJobShrinksWhenTheLeadTimeBegins) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.policy = PolicyPlan{.round_seconds = 3600, .growth_pause_seconds = 1};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const MonoTime began = cluster.now();
  const Duration wait = 2min;
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 2 * kSoon));
  const json::Value& meta = cluster.witness().jobs().at("default/elastic").object["metadata"];
  const auto created = parse_rfc3339(meta["creationTimestamp"].string_or(""));
  ASSERT_TRUE(created.ok());
  say_maintenance(cluster, "n1", to_rfc3339(*created + wait + control::Config{}.maintenance_lead));
  const auto left = elastic_holds_on_n1(cluster, 0);
  EXPECT_FALSE(cluster.run_until(left, began + wait - kJitter - cluster.now()));
  ASSERT_TRUE(cluster.run_until(left, 2 * kJitter));
  EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kJitter));
  EXPECT_FALSE(cluster.run_until([&] { return !left(); }, kSoon));
}

}  // namespace
}  // namespace rubato::sim
