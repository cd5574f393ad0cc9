// Stories of several builds at once: an operator of the next version, and workers of the one
// before.
#include "tests/sim/whole_cluster.h"

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kSoon = 20s;
constexpr Duration kInstalled = 25s;  // the next version is
constexpr const char* kJob = "default/elastic";

Scenario three_train(std::uint64_t seed, std::uint64_t steps) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
  scenario.queues = {{"default", 0}};
  JobPlan job;
  job.shape = {.name = "elastic", .steps = steps, .checkpoint_every = 10};
  job.max = 3;
  scenario.jobs = {job};
  return scenario;
}

// Its operators say things that agents and workers have never heard of, beside what they know.
TEST(UpgradeStories, AllTrainOnUnderTheNextVersionAndBack) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WholeCluster cluster(three_train(seed, 100'000), {.listening = true});
    cluster.start();
    const auto job = [&] { return cluster.witness().jobs().at(kJob); };
    const auto all_train = [&] {
      return cluster.witness().jobs().contains(kJob) && job().members.size() == 3;
    };
    ASSERT_TRUE(cluster.run_until(all_train, kSoon));
    cluster.run_until([] { return false; }, kSoon);
    const SeenJob before = job();
    cluster.inject({FaultKind::kNextVersion, 0s, kInstalled, 0, 0});
    const auto somebody_stops = [&] {
      return !all_train() || job().generation != before.generation;
    };
    EXPECT_FALSE(cluster.run_until(somebody_stops, 2 * kInstalled)) << "seed " << seed;
    EXPECT_GE(job().leader, before.leader + 2) << "both versions have led";
    // Who starts under one version joins those that started under the other.
    cluster.inject({FaultKind::kNextVersion, 0s, 4 * kSoon, 0, 0});
    cluster.run_until([] { return false; }, kSoon);
    cluster.inject({FaultKind::kPodCrash, 0s, 0s, 1, 0});
    EXPECT_TRUE(cluster.run_until([&] { return !all_train(); }, kSoon)) << "seed " << seed;
    EXPECT_TRUE(cluster.run_until(all_train, 2 * kSoon)) << "seed " << seed;
  }
}

TEST(UpgradeStories, WorkersOfTwoBuildsTrainOneJobToItsEnd) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Scenario scenario = three_train(seed, 150);
    scenario.old_builds = 0.5;
    scenario.faults = {{FaultKind::kPodCrash, 8s, 0s, 0, 0},
                       {FaultKind::kNodeCut, 14s, 4s, 1, 0},
                       {FaultKind::kPodDeleted, 22s, 0s, 2, 0}};
    const RunResult result = WholeCluster(scenario, {.listening = true}).run();
    EXPECT_TRUE(result.ok) << "seed " << seed << ": " << result.what;
  }
}

}  // namespace
}  // namespace rubato::sim
