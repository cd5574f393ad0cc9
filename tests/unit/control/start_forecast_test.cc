#include "operator/control/start_forecast.h"

#include "tests/unit/scheduler/small_clusters.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

class StartForecastTest : public ::testing::Test {
 protected:
  // One node that a fills for so long, and jobs that want it.
  void lasts(Duration a, int waiting) {
    sched::Job holds = sched::running("a", 1, 1, {"n1"});
    holds.remaining_ms = std::chrono::duration_cast<std::chrono::milliseconds>(a).count();
    std::vector<sched::Job> jobs{holds};
    for (int i = 0; i < waiting; ++i) jobs.push_back(sched::job("b" + std::to_string(i), 1, 1));
    snapshot_.state = sched::cluster({sched::node("n1", 1, 0)}, jobs);
  }
  std::optional<Duration> said_of(const std::string& job, Duration passed) {
    const auto plan = sched::make_plan(snapshot_.state, snapshot_.policy);
    const auto& said = forecast_.look_at(snapshot_, plan, MonoTime{} + passed, WallTime{} + passed);
    const auto found = said.find(job);
    if (found == said.end()) return std::nullopt;
    return found->second - WallTime{};
  }

  sched::Snapshot snapshot_;
  StartForecast forecast_;
};

TEST_F(StartForecastTest, OnceAMinute) {
  lasts(600s, 1);
  EXPECT_EQ(said_of("b0", 0s), 600s);
  lasts(100s, 1);
  EXPECT_EQ(said_of("b0", 59s), 600s);
  EXPECT_EQ(said_of("b0", 60s), 160s);
}

TEST_F(StartForecastTest, SoonerForOneThatHasCome) {
  lasts(600s, 1);
  EXPECT_EQ(said_of("b0", 0s), 600s);
  lasts(600s, 2);
  EXPECT_EQ(said_of("b1", 9s), std::nullopt);
  lasts(590s, 1);
  snapshot_.state.jobs[1].id = snapshot_.state.jobs[1].name = "c";
  EXPECT_EQ(said_of("c", 10s), 600s);
  EXPECT_EQ(said_of("b0", 11s), std::nullopt) << "who is gone, or was placed, waits no more";
}

TEST_F(StartForecastTest, WhatIsNearStands) {
  lasts(3000s, 1);
  EXPECT_EQ(said_of("b0", 0s), 3000s);
  lasts(3200s, 1);
  EXPECT_EQ(said_of("b0", 60s), 3000s) << "a tenth of what is left";
  lasts(3500s, 1);
  EXPECT_EQ(said_of("b0", 120s), 3620s);
  lasts(3620s - 180s + 61s, 1);
  EXPECT_EQ(said_of("b0", 180s), 3620s);
}

TEST_F(StartForecastTest, UnknownWhereNobodyIsKnownToEnd) {
  lasts(600s, 1);
  EXPECT_EQ(said_of("b0", 0s), 600s);
  snapshot_.state.jobs[0].remaining_ms.reset();
  EXPECT_EQ(said_of("b0", 60s), std::nullopt);
}

TEST_F(StartForecastTest, NoneWhereADecisionIsLarge) {
  lasts(600s, 1);
  for (int i = 0; i < 10'000; ++i)
    snapshot_.state.nodes.push_back(sched::node("m" + std::to_string(i), 1, 0));
  EXPECT_EQ(said_of("b0", 0s), std::nullopt);
}

}  // namespace
}  // namespace rubato::control
