// Stories of a switch that fails: a group of nodes and all others do not reach each other, while
// real workers of one job train on both sides.
#include "tests/sim/told_stories.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kNoticed = 15s;  // links that are silent, the question whom each reaches
constexpr Duration kPark = 15s;     // spec.parkSeconds of jobs here (whole_cluster.cc)
constexpr Duration kOnePause = 5s;  // until who was left out is asked again, first

// One job, whose workers are one to a node.
class Racks {
 public:
  Racks(int nodes, int min, int max) : cluster_(story_of(nodes, min, max), {.listening = true}) {
    cluster_.start();
  }

  WholeCluster& cluster() { return cluster_; }
  World& world() { return cluster_.world("racks"); }
  bool come_to(std::size_t members, Duration limit) {
    return cluster_.run_until([&] { return members_of(cluster_, "racks") == members; }, limit);
  }
  bool step_on(Duration limit) {
    const std::uint64_t step = world().highest_step();
    return cluster_.run_until([&] { return world().highest_step() > step + 1; }, limit);
  }
  void wait(Duration time) {
    ASSERT_FALSE(cluster_.run_until([] { return false; }, time));
    ASSERT_EQ(cluster_.violation(), std::nullopt);
  }
  // `size` nodes from number `first` on and all others; the operators are beside those others, or
  // reach everybody.
  void split(std::uint64_t first, std::uint64_t size, bool from_operators, Duration spell) {
    cluster_.inject({.kind = FaultKind::kSplit,
                     .spell = spell,
                     .pick = first,
                     .more = 3 * (size - 1) + (from_operators ? 0 : 1)});
  }
  // Nodes whose workers are members.
  std::set<std::string> trains_on() {
    std::set<std::string> nodes;
    const auto& members = cluster_.witness().jobs().at("default/racks").members;
    for (const auto& [key, pod] : cluster_.witness().pods())
      if (members.contains(pod.uid)) nodes.insert(pod.node);
    return nodes;
  }
  std::set<std::string> pods() {
    std::set<std::string> uids;
    for (const auto& [key, pod] : cluster_.witness().pods()) uids.insert(pod.uid);
    return uids;
  }
  int gpus() { return cluster_.witness().jobs().at("default/racks").allocation->gpus; }
  std::int64_t recomputed() {
    const auto& job = cluster_.witness().jobs().at("default/racks").object;
    return job["status"]["progress"]["recomputedSteps"].int_or(0);
  }
  bool all_first_lives() {
    for (const auto& [pod, workers] : cluster_.witness().jobs().at("default/racks").members)
      for (const auto& [uid, slot, incarnation] : workers)
        if (incarnation != 1) return false;
    return true;
  }

 private:
  static Scenario story_of(int nodes, int min, int max) {
    Scenario scenario;
    for (int i = 0; i < nodes; ++i) scenario.nodes.push_back({"n" + std::to_string(i), "fast", 1});
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("racks", min, max)};
    scenario.times.micro = 100ms;  // few long steps
    return scenario;
  }

  WholeCluster cluster_;
};

// Of `nodes`, `size` from number `first` on are split from all others, and that heals, twice. The
// larger part goes on, of equal ones either.
void a_split_costs_one_generation(int nodes, std::uint64_t first, std::uint64_t size) {
  SCOPED_TRACE(::testing::Message() << nodes << " nodes, " << size << " from number " << first);
  const auto all = static_cast<std::size_t>(nodes);
  const std::size_t larger = std::max(all - size, size);
  Racks racks(nodes, 1, nodes);
  ASSERT_TRUE(racks.come_to(all, 2 * kSoon));
  ASSERT_TRUE(racks.step_on(kSoon));
  const std::set<std::string> pods = racks.pods();
  for (const Duration spell : {kSoon, kSoon + kNoticed}) {
    const std::uint64_t generation = racks.world().generations();
    racks.split(first, size, false, spell);
    ASSERT_TRUE(racks.come_to(larger, kNoticed));
    ASSERT_TRUE(racks.step_on(2 * kJitter));
    EXPECT_EQ(racks.world().generations(), generation + 1);
    std::set<std::string> group;
    for (std::uint64_t i = 0; i < size; ++i) group.insert("n" + std::to_string((first + i) % all));
    const std::set<std::string> on = racks.trains_on();
    const auto inside = static_cast<std::size_t>(
        std::ranges::count_if(on, [&](const std::string& node) { return group.contains(node); }));
    EXPECT_TRUE(inside == 0 || inside == larger) << "both sides train together";
    // Who waits is asked again after 5 s, 10 s, 20 s …: the second time there was one more before.
    ASSERT_TRUE(racks.come_to(all, 2 * spell + 2 * kOnePause));
    ASSERT_TRUE(racks.step_on(2 * kJitter));
    EXPECT_TRUE(racks.all_first_lives());
    EXPECT_EQ(racks.pods(), pods);
  }
}

TEST(SplitStories, ASplitCostsOneGenerationAndTheLargerPartGoesOn) {
  a_split_costs_one_generation(6, 0, 2);
  a_split_costs_one_generation(6, 0, 4);
  a_split_costs_one_generation(5, 3, 4);
}

TEST(SplitStories, OfEqualPartsOneGoesOn) {
  a_split_costs_one_generation(6, 0, 3);
  a_split_costs_one_generation(6, 2, 3);
  a_split_costs_one_generation(4, 0, 2);
}

// Neither part has enough: the job waits with its state for a while, gives its GPUs back with all
// that it has decided, and goes on from there once all reach each other.
TEST(SplitStories, WhereNoPartIsEnoughNothingIsLost) {
  Racks racks(6, 4, 6);
  ASSERT_TRUE(racks.come_to(6, 2 * kSoon));
  ASSERT_TRUE(racks.step_on(kSoon));
  const std::set<std::string> pods = racks.pods();
  racks.split(0, 3, false, 2min);
  ASSERT_TRUE(racks.come_to(3, kNoticed));
  EXPECT_FALSE(racks.step_on(kPark - kJitter)) << "three are too few";
  EXPECT_EQ(racks.pods(), pods);
  const auto is_given_back = [&] { return racks.gpus() == 0; };
  ASSERT_TRUE(racks.cluster().run_until(is_given_back, 2 * kJitter));
  EXPECT_FALSE(racks.step_on(kSoon)) << "six that do not reach each other are too few as well";
  ASSERT_TRUE(racks.step_on(3min));
  ASSERT_TRUE(racks.come_to(6, 2 * kSoon));
  EXPECT_EQ(racks.recomputed(), 0);
}

// Operators are on one side: that one goes on, be it the smaller one, and the others wait for it.
TEST(SplitStories, WhereTheOperatorsAreTrainingGoesOn) {
  for (const std::uint64_t size : {2, 3, 4}) {
    SCOPED_TRACE(::testing::Message() << size << " of 6 are split from the operators");
    Racks racks(6, 1, 6);
    ASSERT_TRUE(racks.come_to(6, 2 * kSoon));
    ASSERT_TRUE(racks.step_on(kSoon));
    // Those that fall silent do so one after the other; one generation comes of it that stands.
    const std::uint64_t rescales = racks.world().rescales();
    racks.split(0, size, true, 12s);
    ASSERT_TRUE(racks.come_to(6 - size, kNoticed));
    ASSERT_TRUE(racks.step_on(2 * kJitter));
    EXPECT_EQ(racks.world().rescales(), rescales + 1);
    ASSERT_TRUE(racks.come_to(6, 2 * kSoon));
    ASSERT_TRUE(racks.step_on(2 * kJitter));
    EXPECT_TRUE(racks.all_first_lives());
  }
}

// All of the job are on the other side: they train on, and the operators find their state there.
TEST(SplitStories, WhoIsSplitFromTheOperatorsAloneTrainsOn) {
  Racks racks(5, 4, 4);
  ASSERT_TRUE(racks.come_to(4, 2 * kSoon));
  ASSERT_TRUE(racks.step_on(kSoon));
  const std::set<std::string> on = racks.trains_on();
  std::uint64_t spare = 0;
  while (on.contains("n" + std::to_string(spare))) ++spare;
  racks.split(spare + 1, 4, true, 12s);
  racks.wait(6s);
  ASSERT_TRUE(racks.step_on(2 * kJitter)) << "no operator is needed for a step";
  ASSERT_TRUE(racks.come_to(4, 2 * kSoon));
  ASSERT_TRUE(racks.step_on(kSoon));
  EXPECT_EQ(racks.recomputed(), 0) << "one that holds the state was found";
}

}  // namespace
}  // namespace rubato::sim
