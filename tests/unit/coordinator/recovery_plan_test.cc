#include "operator/coordinator/recovery_plan.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

wire::WorkerStanding survivor(std::uint64_t seq, bool reduced,
                              std::initializer_list<std::pair<std::uint32_t, std::uint32_t>> held,
                              std::uint64_t generation = 1) {
  wire::WorkerStanding s;
  s.set_has_state(true);
  s.set_seq(seq);
  s.set_reduced(reduced);
  s.set_generation(generation);
  if (seq > 0) s.mutable_last()->set_seq(seq - 1);
  for (const auto& [begin, end] : held) {
    wire::Range& range = *s.add_held();
    range.set_begin(begin);
    range.set_end(end);
  }
  return s;
}

std::uint32_t total(const RecoveryPlan& plan) {
  std::vector<int> seen(8, 0);
  std::uint32_t count = 0;
  for (const auto& share : plan.shares)
    for (const auto& range : share)
      for (auto m = range.begin; m < range.end; ++m, ++count) EXPECT_EQ(++seen[m], 1);
  return count;
}

TEST(RecoveryPlan, WhatIsHeldStays) {
  const auto plan = plan_recovery({survivor(5, false, {{0, 2}}), survivor(5, true, {{3, 6}})}, 8);
  EXPECT_EQ(plan.base_seq, 5u);
  EXPECT_EQ(plan.salvaged, 5u);
  EXPECT_EQ(plan.recomputed, 3u);
  EXPECT_EQ(total(plan), 8u);
}

TEST(RecoveryPlan, OneBehindAppliesTheDecisionAndBringsNothing) {
  const auto plan = plan_recovery({survivor(4, true, {{0, 4}}), survivor(5, false, {})}, 8);
  EXPECT_EQ(plan.base_seq, 5u);
  ASSERT_TRUE(plan.decision.has_value());
  EXPECT_EQ(plan.decision->seq(), 4u);
  EXPECT_TRUE(plan.levels[0]);
  EXPECT_EQ(plan.salvaged, 0u);
  EXPECT_EQ(total(plan), 8u);
}

TEST(RecoveryPlan, WhoCannotLevelIsNamed) {
  const auto plan = plan_recovery({survivor(4, false, {}), survivor(5, false, {{1, 2}})}, 8);
  EXPECT_FALSE(plan.levels[0]);
  EXPECT_TRUE(plan.shares[0].empty());
  EXPECT_EQ(total(plan), 8u);
}

TEST(RecoveryPlan, ARoundThatOnlyWhoIsLeftOutKnowsLevelsNobody) {
  const auto plan = plan_recovery({survivor(5, false, {{0, 2}}), survivor(5, false, {})}, 8,
                                  {survivor(6, false, {})});
  EXPECT_EQ(plan.base_seq, 6u);
  EXPECT_EQ(plan.levels, (std::vector<bool>{false, false}));
  EXPECT_EQ(plan.shares.size(), 2u);
  EXPECT_EQ(total(plan), 0u);
}

TEST(RecoveryPlan, OfTwoHoldersTheYoungerGenerationCounts) {
  const auto plan =
      plan_recovery({survivor(5, false, {{0, 3}}, 1), survivor(5, false, {{2, 6}}, 2)}, 8);
  EXPECT_EQ(plan.salvaged, 4u);
  EXPECT_EQ(total(plan), 8u);
}

TEST(RecoveryPlan, AStandingThatMakesNoSenseHoldsNothing) {
  const auto plan = plan_recovery({survivor(5, false, {{6, 90}}), survivor(5, false, {{4, 2}})}, 8);
  EXPECT_EQ(plan.salvaged, 0u);
  EXPECT_EQ(total(plan), 8u);
}

}  // namespace
}  // namespace rubato::coordinator
