#include "scheduler/forecast.h"

#include "tests/unit/scheduler/drawn_clusters.h"

#include <tuple>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

using Starts = std::vector<std::optional<TimeMs>>;

TEST(Forecast, JobsStartAsOthersEnd) {
  const auto state = cluster({node("n1", 2, 0)}, {lasting(running("a", 1, 1, {"n1"}), 1000),
                                                  lasting(running("b", 1, 1, {"n1"}), 3000),
                                                  lasting(job("c", 2, 2), 500), job("d", 2, 2)});
  EXPECT_EQ(expected_starts(state, {}), (Starts{0, 0, 3000, 3500}));
}

TEST(Forecast, OfOneJobIsWhatItIsAmongAll) {
  std::vector<Job> jobs{lasting(running("a", 1, 1, {"n1"}), 1000), job("never", 2, 2)};
  for (int i = 0; i < 20; ++i) jobs.push_back(lasting(job("j" + std::to_string(i), 1, 1), 1000));
  jobs.push_back(job("z", 1, 1));
  const auto state = cluster({node("n1", 1, 0)}, std::move(jobs));
  const Starts starts = expected_starts(state, {});
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    EXPECT_EQ(expected_start(state, {}, i), starts[i]) << state.jobs[i].id;
}

TEST(Forecast, IsUnknownWhereNobodyIsKnownToEnd) {
  const auto state = cluster({node("n1", 2, 0)},
                             {lasting(running("a", 1, 1, {"n1"}), 1000), running("b", 1, 1, {"n1"}),
                              job("c", 2, 2), job("d", 1, 1), job("never", 3, 3)});
  EXPECT_EQ(expected_starts(state, {}), (Starts{0, 0, std::nullopt, 1000, std::nullopt}));
}

// b may be done before e: when c has a GPU nobody knows.
TEST(Forecast, NothingIsKnownAfterTheStartOfAJobThatMayEndAtAnyTime) {
  const auto state = cluster({node("n1", 2, 0)}, {lasting(running("a", 1, 1, {"n1"}), 1000),
                                                  lasting(running("e", 1, 1, {"n1"}), 5000),
                                                  job("b", 1, 1), job("c", 1, 1)});
  EXPECT_EQ(expected_starts(state, {}), (Starts{0, 0, 1000, std::nullopt}));
}

TEST(Forecast, MoreGpusThanTheMinimumEndItSooner) {
  // Twice as fast on two.
  Job a = lasting(running("a", 1, 2, {"n1", "n1"}), 1000);
  a.measured = {{"A", 1, 10}, {"A", 2, 20}};
  Job b = job("b", 2, 2);
  EXPECT_EQ(expected_starts(cluster({node("n1", 2, 0)}, {a, b}), {}), (Starts{0, 500}));
  // It gives one of them to b, which needs one only.
  b.min = b.max = 1;
  EXPECT_EQ(expected_starts(cluster({node("n1", 2, 0)}, {a, b}), {}), (Starts{0, 0}));
}

TEST(Forecast, WhatIsLeavingIsFreeAtOnce) {
  Job a = running("a", 1, 1, {"n1", "n1"});
  a.held[0].leaving = true;
  EXPECT_EQ(expected_starts(cluster({node("n1", 2, 0)}, {a, job("b", 1, 1)}), {}).at(1), 0);
}

// The queue has a node and a rack of two. `second` has the rack once `first` has ended there, and
// `third` waits for it: the node alone is too small.
TEST(Forecast, WhoStartsInACellHoldsIt) {
  ClusterState state =
      cluster({}, {lasting(running("first", 2, 2, {"n1", "n2"}), 600'000),
                   lasting(job("second", 2, 2), 3'600'000), lasting(job("third", 2, 2), 3'600'000),
                   lasting(running("other", 1, 1, {"n5"}), 1'200'000)});
  state.levels = {"rack"};
  for (const auto& [id, rack, free] :
       {std::tuple("n1", "r1", 0), std::tuple("n2", "r1", 0), std::tuple("n3", "r2", 1),
        std::tuple("n4", "r2", 1), std::tuple("n5", "r3", 0), std::tuple("n6", "r3", 1)}) {
    state.nodes.push_back(node(id, 1, free));
    state.nodes.back().domains["rack"] = rack;
  }
  for (Held& held : state.jobs[0].held) held.cell = "rack";
  for (std::size_t i = 0; i < 3; ++i) {
    state.jobs[i].queue = "cells";
    state.jobs[i].queued_at = static_cast<double>(i);
  }
  state.queues["cells"] = {
      .name = "cells", .borrowing = false, .cells = {{"A", kNodeLevel, 1}, {"A", "rack", 1}}};
  EXPECT_EQ(expected_starts(state, {.policy = "fifoBackfill"}), (Starts{0, 600'000, 4'200'000, 0}));
}

TEST(Forecast, EndsAfterItsMostPlans) {
  std::vector<Job> jobs{lasting(running("a", 1, 1, {"n1"}), 1000)};
  for (int i = 0; i < 2 * kForecastPlansMost; ++i) {
    jobs.push_back(lasting(job("j" + std::to_string(100 + i), 1, 1), 1000));
    jobs.back().queued_at = i;
  }
  const Starts starts = expected_starts(cluster({node("n1", 1, 0)}, jobs), {});
  EXPECT_EQ(starts[1], 1000);
  EXPECT_EQ(starts[kForecastPlansMost - 1], 1000 * (kForecastPlansMost - 1));
  EXPECT_EQ(starts[kForecastPlansMost], std::nullopt);
}

TEST(Forecast, IsSaidInRoundNumbers) {
  EXPECT_EQ(in_about(59'999), "in less than a minute");
  EXPECT_EQ(in_about(60'000), "in about 1 min");
  EXPECT_EQ(in_about(12 * 60'000 + 29'999), "in about 12 min");
  EXPECT_EQ(in_about(150 * 60'000), "in about 3 h");
  EXPECT_EQ(in_about(72 * 3'600'000), "in about 3 days");
}

// Who is placed now starts now, nobody who waits is forgotten in between, and no time is below 0.
TEST(ForecastProperty, AgreesWithThePlanOfNow) {
  constexpr std::uint64_t kFirst = 300;
  for (std::uint64_t seed = 1; seed <= seeds_of_all_policies(kFirst); ++seed) {
    const PolicyConfig config = policy_of_seed(seed, kFirst);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + config.policy);
    const ClusterState state = drawn_cluster(seed, config);
    const Plan plan = make_plan(state, config);
    const Starts starts = expected_starts(state, config);
    ASSERT_EQ(starts.size(), state.jobs.size());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (plan.verdicts[i].outcome == Outcome::kPlaced) {
        EXPECT_EQ(starts[i], 0);
      }
      if (plan.verdicts[i].outcome == Outcome::kNever) {
        EXPECT_EQ(starts[i], std::nullopt);
      }
      if (starts[i]) {
        EXPECT_GE(*starts[i], 0);
      }
    }
    EXPECT_EQ(expected_starts(state, config), starts);
  }
}

}  // namespace
}  // namespace rubato::sched
