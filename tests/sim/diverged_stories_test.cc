// Stories of a bit that flips in a worker's memory.
#include "operator/api/conditions.h"
#include "tests/sim/told_stories.h"

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

Scenario training_on(int nodes, std::uint64_t steps, std::uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  for (int i = 0; i < nodes; ++i) scenario.nodes.push_back({"n" + std::to_string(i), "fast", 1});
  scenario.queues = {{"default", 0}};
  JobPlan job;
  job.shape = {.name = "elastic", .steps = steps, .checkpoint_every = 10};
  job.min = 1;
  job.max = nodes;
  scenario.jobs = {job};
  return scenario;
}

std::size_t members(const WholeCluster& cluster) {
  const auto found = cluster.witness().jobs().find(kElastic);
  return found == cluster.witness().jobs().end() ? 0 : found->second.members.size();
}

// The message of the condition Diverged; empty unless it is True.
std::string diverged(const WholeCluster& cluster) {
  const json::Value& job = cluster.witness().jobs().at(kElastic).object;
  for (const json::Value& condition : job["status"]["conditions"].items())
    if (condition["type"].string_view_or("") == api::condition::kDiverged &&
        condition["status"].string_view_or("") == "True")
      return condition["message"].string_or("");
  return "";
}

// One of three: the other two go on at once, and it follows anew. No state is one that an
// undisturbed run does not come through, and no pod is made for it.
TEST(DivergedStories, TheMajorityGoesOnAndTheOtherFollowsAnew) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    WholeCluster cluster(training_on(3, 100'000, seed), {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members(cluster) == 3; }, kSoon));
    cluster.run_until([] { return false; }, kSoon / 4);
    World& world = cluster.world("elastic");
    const std::size_t pods = cluster.witness().jobs().at(kElastic).made_pods.size();
    cluster.inject({FaultKind::kMemoryFlip, 0s, 0s, seed, 31 * seed});
    ASSERT_TRUE(cluster.run_until([&] { return world.refused() > 0; }, 2s)) << "seed " << seed;
    ASSERT_TRUE(cluster.run_until([&] { return members(cluster) == 2; }, 2s)) << "seed " << seed;
    ASSERT_TRUE(cluster.run_until([&] { return members(cluster) == 3; }, kSoon)) << "seed " << seed;
    const std::uint64_t step = world.highest_step();
    EXPECT_TRUE(cluster.run_until([&] { return world.highest_step() > step + 5; }, kSoon));
    EXPECT_NE(diverged(cluster).find("held another state than pods"), std::string::npos);
    EXPECT_EQ(cluster.witness().jobs().at(kElastic).made_pods.size(), pods);
  }
}

// One of two: nobody knows whose is right. Both begin anew from the checkpoint, and the job ends.
TEST(DivergedStories, WithoutAMajorityAllGoBackToTheCheckpoint) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    WholeCluster cluster(training_on(2, 100, seed), {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members(cluster) == 2; }, kSoon));
    World& world = cluster.world("elastic");
    ASSERT_TRUE(cluster.run_until([&] { return world.highest_step() > 25; }, 2 * kSoon));
    cluster.inject({FaultKind::kMemoryFlip, 0s, 0s, seed, 31 * seed});
    ASSERT_TRUE(cluster.run_until([&] { return world.refused() > 0; }, 2s)) << "seed " << seed;
    ASSERT_TRUE(cluster.run_until([&] { return !diverged(cluster).empty(); }, kSoon));
    EXPECT_NE(diverged(cluster).find("no majority"), std::string::npos);
    EXPECT_TRUE(cluster.run_until([&] { return cluster.all_finished(); }, 3min)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace rubato::sim
