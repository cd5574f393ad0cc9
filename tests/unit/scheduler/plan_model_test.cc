#include "scheduler/perf/plan_model.h"

#include "tests/unit/scheduler/observed_steps.h"

#include <array>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

PlanModel some_plan_model() {
  return {.compute = 8,
          .compute_3d = 7,
          .tensor = 0.6,
          .pipeline = 0.1,
          .node_gradients = 0.3,
          .card_gradients = 2,
          .sharded_factor = 1.3,
          .recompute = 0.3,
          .update = 0.4,
          .offload = 0.5,
          .offload_shared = 2,
          .constant = 0.1,
          .gamma = 1.5};
}

constexpr PlanLayout kWhole{.gpus_per_node = 8, .cards = 4};
constexpr PlanLayout kHalf{.gpus_per_node = 4, .cards = 2};

std::vector<PlanObservation> plans(const PlanModel& model, double noise, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<PlanObservation> all;
  for (const PlanLayout layout : {kWhole, kHalf}) {
    const auto add = [&](const ExecutionPlan& plan) {
      all.push_back(
          {plan, layout, model.iteration_s(plan, layout) * std::exp(noise * normal(rng))});
    };
    for (const Technique how : {Technique::kPlain, Technique::kRecompute,
                                Technique::kShardedOptimizer, Technique::kOffload})
      for (const std::int64_t data : {1, 2, 8, 16}) add({.technique = how, .data = data});
    for (const std::int64_t pipeline : {1, 2, 8})
      for (const std::int64_t tensor : {1, 4, 8})
        for (const std::int64_t data : {1, 4, 8})
          add({Technique::kThreeDimensional, pipeline, tensor, data});
  }
  return all;
}

TEST(PlanModel, AnIterationIsTheSumOfItsTerms) {
  PlanModel model = some_plan_model();
  model.gamma = 1;
  // forward and backward, update, constant
  EXPECT_NEAR(model.iteration_s({}, kWhole), 8 + 0.4 + 0.1, 1e-12);
  EXPECT_NEAR(model.iteration_s({.technique = Technique::kRecompute}, kWhole), 8 * 1.3 + 0.5,
              1e-12);
  EXPECT_NEAR(model.iteration_s({.technique = Technique::kOffload, .data = 4}, kWhole),
              8.0 / 4 + 0.3 * 3 / 4 + 0.5 + 2.0 / 4 + 0.1, 1e-12);
  EXPECT_NEAR(model.iteration_s({.technique = Technique::kShardedOptimizer, .data = 8}, kHalf),
              8.0 / 8 + 1.3 * 2 * 7 / 8 / 2 + 0.4 / 8 + 0.1, 1e-12);
  EXPECT_NEAR(model.iteration_s({Technique::kThreeDimensional, 2, 4, 4}, kWhole),
              7.0 / 16 + 0.6 * 3 / 16 + 0.1 / 4 + 2.0 * 3 / 4 / 2 / 4 + 0.4 / 8 + 0.1, 1e-12);
}

TEST(PlanModel, GradientsStayOnANodeThatHoldsAStage) {
  const PlanModel model = some_plan_model();
  const ExecutionPlan plan{Technique::kThreeDimensional, 4, 2, 4};
  PlanModel slow_cards = model;
  slow_cards.card_gradients *= 10;
  EXPECT_EQ(model.iteration_s(plan, kWhole), slow_cards.iteration_s(plan, kWhole));
  EXPECT_LT(model.iteration_s(plan, kHalf), slow_cards.iteration_s(plan, kHalf));
}

TEST(PlanModel, GpusThatAreNotPairedPayForEachStepOfTheRing) {
  PlanModel model = some_plan_model();
  model.gamma = 1;
  model.unpaired_between = 0.2;
  model.unpaired_within = 0.05;
  PlanLayout layout{.gpus_per_node = 2, .cards = 1, .nodes = 3};
  const auto more = [&](const ExecutionPlan& plan) {
    layout.is_paired = false;
    const double unpaired = model.iteration_s(plan, layout);
    layout.is_paired = true;
    return unpaired - model.iteration_s(plan, layout);
  };
  EXPECT_NEAR(more({.data = 8}), 2 * 0.2 + 5 * 0.05, 1e-12);
  EXPECT_NEAR(more({Technique::kThreeDimensional, 2, 1, 4}), (2 * 0.2 + 0.05) / 2, 1e-12);
  EXPECT_EQ(more({.data = 2}), 0);  // on one node
  EXPECT_EQ(more({.technique = Technique::kOffload, .data = 8}), 0);
}

TEST(PlanModel, OnePlanThatIsFarOffDoesNotBendTheRest) {
  const PlanModel real = some_plan_model();
  std::vector<PlanObservation> seen = plans(real, 0, 1);
  seen[0].iteration_s /= 2;
  const auto fitted = fit_plans(seen);
  ASSERT_TRUE(fitted.ok());
  for (std::size_t i = 1; i < seen.size(); ++i)
    EXPECT_NEAR(fitted->iteration_s(seen[i].plan, seen[i].layout) / seen[i].iteration_s, 1, 0.01)
        << i;
}

TEST(PlanModel, IsFoundFromObservations) {
  const PlanModel real = some_plan_model();
  for (const double noise : {0.0, 0.03}) {
    const auto fitted = fit_plans(plans(real, noise, 1));
    ASSERT_TRUE(fitted.ok());
    for (const PlanLayout layout : {kWhole, kHalf})
      for (const ExecutionPlan& plan :
           {ExecutionPlan{Technique::kThreeDimensional, 4, 2, 2},
            ExecutionPlan{Technique::kThreeDimensional, 2, 8, 2},
            ExecutionPlan{.technique = Technique::kPlain, .data = 4},
            ExecutionPlan{.technique = Technique::kShardedOptimizer, .data = 32},
            ExecutionPlan{.technique = Technique::kOffload, .data = 4}})
        EXPECT_NEAR(fitted->iteration_s(plan, layout) / real.iteration_s(plan, layout), 1,
                    0.03 + 2 * noise);
  }
}

TEST(PlanModel, WhatWasNotSeenStaysAsExpected) {
  const auto fitted = fit_plans({{{}, kWhole, 10}});
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->iteration_s({}, kWhole), 10, 0.1);
  EXPECT_NEAR(fitted->recompute, 1.0 / 3, 1e-6);
  EXPECT_LT(fitted->iteration_s({.data = 8}, kWhole), 3);
  EXPECT_GT(fitted->iteration_s({.data = 8}, kWhole), 10.0 / 8);
}

TEST(PlanModel, WhatIsNoPlanIsAnError) {
  EXPECT_FALSE(fit_plans({}).ok());
  EXPECT_FALSE(fit_plans(std::vector<PlanObservation>(kPlanObservationsMax + 1, {{}, {}, 1})).ok());
  for (const double bad : {0.0, -1.0, 1e10, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    EXPECT_FALSE(fit_plans({{{}, {}, bad}}).ok());
  EXPECT_FALSE(fit_plans({{{.data = 0}, {}, 1}}).ok());
  EXPECT_FALSE(fit_plans({{{.pipeline = 2}, {}, 1}}).ok());
  EXPECT_FALSE(fit_plans({{{.tensor = 2}, {}, 1}}).ok());
  EXPECT_FALSE(fit_plans({{{}, {.gpus_per_node = 1, .cards = 0}, 1}}).ok());
  EXPECT_FALSE(fit_plans({{{}, {.nodes = 0}, 1}}).ok());
}

TEST(PlanModel, AnythingWithinTheBoundsIsFitted) {
  Rng rng(1);
  const std::array<double, 6> seconds = {1e-9, 1e-3, 1, 1, 1e3, 1e9};
  const std::array<std::int64_t, 5> degrees = {1, 2, 8, 8, 1'000'000};
  for (int round = 0; round < 50; ++round) {
    std::vector<PlanObservation> seen(1 + rng.below(6));
    for (PlanObservation& one : seen) {
      one.plan.technique = static_cast<Technique>(rng.below(5));
      one.plan.data = degrees[rng.below(degrees.size())];
      if (one.plan.technique == Technique::kThreeDimensional) {
        one.plan.pipeline = degrees[rng.below(degrees.size())];
        one.plan.tensor = degrees[rng.below(degrees.size())];
      }
      one.iteration_s = seconds[rng.below(seconds.size())];
    }
    const auto fitted = fit_plans(seen);
    ASSERT_TRUE(fitted.ok()) << "round " << round;
    for (const PlanObservation& one : seen) {
      const double predicted = fitted->iteration_s(one.plan, one.layout);
      EXPECT_TRUE(std::isfinite(predicted) && predicted > 0) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace rubato::sched
