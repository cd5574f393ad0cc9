// Jobs whose pods are far from each other, computed by hand.
#include "tests/unit/scheduler/sim_traces.h"

#include <memory>
#include <utility>

namespace rubato::sched::sim {
namespace {

SimResult play_apart(const std::string& nodes, const std::string& domains,
                     const std::string& distances, std::vector<TraceJob> jobs,
                     const std::string& policy) {
  SimCluster cluster = parse_cluster(nodes).value();
  cluster.domains = parse_domains(domains).value();
  const SimOptions options{.costs = simple_costs(),
                           .distances = parse_distances(distances, cluster).value()};
  const auto scheduler = scheduler_named(policy).value();
  const auto result = simulate(cluster, std::move(jobs), *scheduler, options);
  EXPECT_TRUE(result.ok()) << result.error().what();
  return result.value();
}

// On one node as fast as ever; on two 1.5 times slower; in two racks twice.
TEST(SimPlaces, WhoSpansIsSlower) {
  const std::vector<TraceJob> jobs{rigid("one", 0, 2, 100), rigid("two", 200, 4, 100),
                                   rigid("four", 400, 8, 100)};
  const SimResult result = play_apart("4x2:A", "rack=2", "node=1.5,rack=2", jobs, "fifo");
  EXPECT_EQ(finish_s(result, "one"), 110);
  EXPECT_NEAR(finish_s(result, "two"), 200 + 10 + 150, 0.01);
  EXPECT_NEAR(finish_s(result, "four"), 400 + 10 + 200, 0.01);
  const SimResult nothing_said = play_apart("4x2:A", "rack=2", "", jobs, "fifo");
  EXPECT_EQ(finish_s(nothing_said, "four"), 510);
}

// Twice as slow holds for the mean, 3 GiB/s of a GPU: 5 GiB/s make it 1 + 5 / 3 times slower.
TEST(SimPlaces, TheSlowerTheMoreItExchanges) {
  TraceJob little = rigid("little", 0, 4, 90), much = rigid("much", 500, 4, 90);
  little.traffic = 4;
  much.traffic = 20;
  const SimResult result =
      play_apart("2x2:A", "", "node=2", {little, much, rigid("mean", 1000, 4, 90)}, "fifo");
  EXPECT_NEAR(finish_s(result, "little"), 10 + 90 * (1 + 1.0 / 3), 0.01);
  EXPECT_NEAR(finish_s(result, "much"), 510 + 90 * (1 + 5.0 / 3), 0.01);
  EXPECT_NEAR(finish_s(result, "mean"), 1010 + 180, 0.01);
}

// When "spans" comes, 1 GPU is free in one rack, and 2 and 4 on nodes of the other. Best fit takes
// of both.
TEST(SimPlaces, LiquidKeepsAJobWithinARack) {
  const std::vector<TraceJob> jobs{rigid("a", 0, 3, 1000), rigid("b", 1, 4, 1000),
                                   rigid("c", 2, 2, 1000), rigid("spans", 100, 5, 100)};
  const double fifo = finish_s(play_apart("4x4:A", "rack=2", "rack=4", jobs, "fifo"), "spans");
  EXPECT_NEAR(fifo, 110 + 400, 0.01);
  EXPECT_NEAR(finish_s(play_apart("4x4:A", "rack=2", "rack=4", jobs, "liquid"), "spans"), 210,
              0.01);
}

TEST(SimPlaces, OptionsThatMakeNoSenseAreRefused) {
  const SimCluster cluster{.groups = {}, .domains = parse_domains("zone=16,rack=4").value()};
  EXPECT_EQ(cluster.domains.at(1).nodes, 4);
  for (const char* text :
       {"rack", "rack=0", "=4", "rack=4x", "rack=4,zone=16", "rack=4,rack=4", "node=1"})
    EXPECT_FALSE(parse_domains(text).ok()) << text;
  EXPECT_EQ(parse_distances("node=1.5,zone=3", cluster).value().at("zone"), 3);
  for (const char* text : {"rack", "rack=0.5", "pod=2", "rack=2,rack=3", "rack=nan"})
    EXPECT_FALSE(parse_distances(text, cluster).ok()) << text;
}

}  // namespace
}  // namespace rubato::sched::sim
