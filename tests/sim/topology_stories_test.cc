// Stories of jobs whose pods are to be in one zone.
#include "tests/sim/told_stories.h"

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

// a0 and a1 in one zone, b0 with more room in another.
Scenario two_zones(const std::string& near) {
  Scenario scenario;
  scenario.nodes = {{.name = "a0", .gpu_type = "fast", .gpus = 2, .zone = "a"},
                    {.name = "a1", .gpu_type = "fast", .gpus = 2, .zone = "a"},
                    {.name = "b0", .gpu_type = "fast", .gpus = 3, .zone = "b"}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("near", 2, 3)};
  scenario.jobs[0].near = near;
  return scenario;
}

// What the job has beside what it lost stays in its zone, though another one has room.
TEST(TopologyStories, ARequiredZoneIsKeptThroughALoss) {
  WholeCluster cluster(two_zones("required"), {.listening = true});
  const auto held = [&](const char* node) { return held_on(cluster, "near", node); };
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "near") > 0; }, kSoon));
  ASSERT_EQ(held("b0"), 3) << "the node that holds most of it";
  cluster.inject({.kind = FaultKind::kPodCrash});
  EXPECT_FALSE(cluster.run_until([&] { return held("a0") + held("a1") > 0; }, kSoon));
  EXPECT_EQ(held("b0"), 3);
}

TEST(TopologyStories, APreferredZoneIsLeftForRoom) {
  Scenario scenario = two_zones("preferred");
  scenario.jobs[0].max = 6;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "near") == 6; }, kSoon));
}

// Its level is none that the operator was told of: it waits, and says which there are.
TEST(TopologyStories, AnUnknownLevelIsNamed) {
  Scenario scenario = two_zones("required");
  scenario.jobs[0].level = "rack";
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto said = [&] {
    const auto found = cluster.witness().jobs().find("default/near");
    if (found == cluster.witness().jobs().end()) return false;
    const std::string text = json::dump(found->second.object["status"]["conditions"]);
    return text.find("NeverFits") != std::string::npos &&
           text.find("knows no level \\\"rack\\\" (it knows: zone)") != std::string::npos;
  };
  EXPECT_TRUE(cluster.run_until(said, kSoon));
}

}  // namespace
}  // namespace rubato::sim
