#include "scheduler/perf/goodput.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

StepModel some_model() {
  return {.grad_alpha = 0.1,
          .grad_beta = 0.01,
          .local_alpha = 0.02,
          .local_beta = 0.001,
          .remote_alpha = 0.05,
          .remote_beta = 0.002,
          .gamma = 2};
}

BatchLimits some_limits() {
  return {.first_batch = 32, .max_batch = 1024, .min_local = 4, .max_local = 64};
}

TEST(Goodput, AStepIsWhatThePaperSays) {
  const StepModel model = some_model();
  EXPECT_DOUBLE_EQ(model.grad_s(10), 0.2);
  EXPECT_EQ(model.sync_s({1, 1}), 0);
  EXPECT_DOUBLE_EQ(model.sync_s({1, 4}), 0.022);
  EXPECT_DOUBLE_EQ(model.sync_s({2, 4}), 0.054);
  EXPECT_DOUBLE_EQ(model.step_s({2, 4}, 10), std::hypot(0.2, 0.054));
  EXPECT_DOUBLE_EQ(model.step_s({2, 4}, 10, 3), 0.6 + std::hypot(0.2, 0.054));
}

TEST(Goodput, OverlapLiesBetweenSumAndMaximum) {
  EXPECT_DOUBLE_EQ(overlapped(3, 4, 1), 7);
  EXPECT_DOUBLE_EQ(overlapped(3, 4, 2), 5);
  EXPECT_NEAR(overlapped(3, 4, kGammaMax), 4, 0.05);
  EXPECT_GE(overlapped(3, 4, kGammaMax), 4);
  EXPECT_EQ(overlapped(0, 0, 2), 0);
  EXPECT_TRUE(std::isfinite(overlapped(1e200, 1e200, kGammaMax)));
}

TEST(Goodput, EfficiencyIsThatOfTheNoiseScale) {
  const GradientNoise noise{.square = 2, .variance = 6};
  const double phi = 32 * 6.0 / 2.0;
  for (const double batch : {32.0, 64.0, 500.0})
    EXPECT_NEAR(efficiency(noise, batch, 32), (phi + 32) / (phi + batch), 1e-12);
  EXPECT_EQ(efficiency(noise, 32, 32), 1);
  EXPECT_GT(gain(noise, 128, 32), gain(noise, 64, 32));
}

TEST(Goodput, EfficiencyOfDegenerateNoiseStaysWithinItsBounds) {
  EXPECT_NEAR(efficiency({.square = 0, .variance = 1}, 128, 32), 1, 1e-12);
  EXPECT_NEAR(efficiency({.square = 1, .variance = 0}, 128, 32), 0.25, 1e-12);
  EXPECT_NEAR(efficiency({.square = 0, .variance = 0}, 128, 32), 0.25, 1e-12);
  EXPECT_NEAR(efficiency({.square = -1, .variance = 1}, 128, 32), 1, 1e-12);
}

TEST(Goodput, AFixedBatchIsOnlySplit) {
  BatchLimits limits = some_limits();
  limits.first_batch = limits.max_batch = 256;
  const auto one = best_batch(some_model(), {}, limits, {1, 1});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->batch, 256);
  EXPECT_EQ(one->local_batch, 64);
  EXPECT_EQ(one->accumulated, 3);
  const auto eight = best_batch(some_model(), {}, limits, {2, 8});
  ASSERT_TRUE(eight);
  EXPECT_EQ(eight->accumulated, 0);
  EXPECT_EQ(eight->local_batch, 32);
  EXPECT_EQ(eight->efficiency, 1);
}

TEST(Goodput, MoreNoiseMeansALargerBatch) {
  const auto quiet = best_batch(some_model(), {1, 0.1}, some_limits(), {2, 8});
  const auto noisy = best_batch(some_model(), {1, 100}, some_limits(), {2, 8});
  ASSERT_TRUE(quiet && noisy);
  EXPECT_LT(quiet->batch, noisy->batch);
  EXPECT_LT(quiet->goodput, noisy->goodput);
}

TEST(Goodput, TheBestIsNoWorseThanAnyCandidate) {
  const GradientNoise noise{1, 5};
  for (const Gpus gpus : {1, 2, 3, 8, 16}) {
    const Spread spread{(gpus + 3) / 4, gpus};
    const auto best = best_batch(some_model(), noise, some_limits(), spread);
    ASSERT_TRUE(best) << gpus;
    EXPECT_GE(best->local_batch, 4);
    EXPECT_LE(best->local_batch, 64);
    for (const double batch : {32.0, 1024.0}) {
      const auto other = split_batch(some_model(), noise, some_limits(), spread, batch);
      if (other) {
        EXPECT_GE(best->goodput, other->goodput) << gpus;
      }
    }
  }
}

TEST(Goodput, OneGpuAccumulatesWhereItMustMeasureNoise) {
  BatchLimits limits = some_limits();
  EXPECT_EQ(split_batch(some_model(), {}, limits, {1, 1}, 48)->accumulated, 1);
  EXPECT_EQ(split_batch(some_model(), {}, limits, {1, 1}, 32)->accumulated, 0);
  limits.needs_noise = false;
  EXPECT_EQ(split_batch(some_model(), {}, limits, {1, 1}, 48)->accumulated, 0);
}

TEST(Goodput, WhatCannotBeHasNoBatch) {
  const StepModel model = some_model();
  BatchLimits limits = some_limits();
  limits.max_accumulated = 1;
  EXPECT_FALSE(split_batch(model, {}, limits, {1, 1}, 1024));        // 16 passes
  EXPECT_FALSE(split_batch(model, {}, some_limits(), {8, 32}, 32));  // one sample on each GPU
  EXPECT_FALSE(split_batch(model, {}, some_limits(), {1, 1}, 16));
  EXPECT_FALSE(best_batch(model, {}, some_limits(), {0, 4}));
  EXPECT_FALSE(best_batch(model, {}, some_limits(), {4, 2}));
  EXPECT_FALSE(best_batch(StepModel{}, {}, some_limits(), {1, 1}));  // takes no time
}

TEST(Goodput, NothingComesOfNumbersThatAreNone) {
  StepModel model = some_model();
  model.grad_beta = kNotANumber;
  EXPECT_FALSE(best_batch(model, {}, some_limits(), {1, 2}));
  EXPECT_FALSE(best_batch(some_model(), {kNotANumber, 1}, some_limits(), {1, 2}));
  BatchLimits limits = some_limits();
  limits.max_batch = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(best_batch(some_model(), {}, limits, {1, 2}));
  limits = some_limits();
  limits.min_local = kNotANumber;
  EXPECT_FALSE(best_batch(some_model(), {}, limits, {1, 2}));
  EXPECT_FALSE(split_batch(some_model(), {}, some_limits(), {1, 2}, kNotANumber));
}

}  // namespace
}  // namespace rubato::sched
