#include "scheduler/forecast.h"

#include "tests/unit/scheduler/drawn_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

using Starts = std::vector<std::optional<TimeMs>>;

Job lasting(Job job, TimeMs remaining_ms) {
  job.remaining_ms = remaining_ms;
  return job;
}

TEST(Forecast, JobsStartAsOthersEnd) {
  const auto state = cluster({node("n1", 2, 0)}, {lasting(running("a", 1, 1, {"n1"}), 1000),
                                                  lasting(running("b", 1, 1, {"n1"}), 3000),
                                                  lasting(job("c", 2, 2), 500), job("d", 2, 2)});
  EXPECT_EQ(expected_starts(state, {}), (Starts{0, 0, 3000, 3500}));
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
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PolicyConfig config;
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
