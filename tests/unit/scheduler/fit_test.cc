#include "scheduler/perf/fit.h"

#include "tests/unit/scheduler/observed_steps.h"

#include <array>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Mean of |log(predicted / true)| where nothing was observed, too.
double error_of(const StepModel& fitted, const StepModel& real) {
  double sum = 0;
  int count = 0;
  for (const Spread spread :
       {Spread{1, 1}, Spread{1, 3}, Spread{1, 6}, Spread{2, 6}, Spread{6, 32}})
    for (const double batch : {6.0, 20.0, 50.0}) {
      sum += std::abs(std::log(fitted.step_s(spread, batch) / real.step_s(spread, batch)));
      ++count;
    }
  return sum / count;
}

Result<StepModel> fitted_model(const std::vector<StepObservation>& observations) {
  TRY(const StepFit fit, fit_step(observations));
  return fit.model();
}

void expect_usable(const StepModel& model) {
  for (const double one : {model.grad_alpha, model.grad_beta, model.local_alpha, model.local_beta,
                           model.remote_alpha, model.remote_beta}) {
    EXPECT_TRUE(std::isfinite(one));
    EXPECT_GE(one, 0);
  }
  EXPECT_GE(model.gamma, 1);
  EXPECT_LE(model.gamma, kGammaMax);
}

TEST(Fit, FindsTheParametersOfStepsWithoutNoise) {
  const StepModel real = some_step_model();
  const auto fitted = fitted_model(observed(real, some_spreads(), 0, 1));
  ASSERT_TRUE(fitted.ok());
  EXPECT_LT(error_of(*fitted, real), 0.003);
  EXPECT_NEAR(fitted->grad_alpha / real.grad_alpha, 1, 0.02);
  EXPECT_NEAR(fitted->grad_beta / real.grad_beta, 1, 0.02);
  EXPECT_NEAR(fitted->local_alpha / real.local_alpha, 1, 0.1);
  EXPECT_NEAR(fitted->remote_alpha / real.remote_alpha, 1, 0.1);
  EXPECT_NEAR(fitted->remote_beta / real.remote_beta, 1, 0.1);
  EXPECT_NEAR(fitted->gamma / real.gamma, 1, 0.1);
}

TEST(Fit, FindsThemUnderNoise) {
  const StepModel real = some_step_model();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto fitted = fitted_model(observed(real, some_spreads(), 0.05, seed));
    ASSERT_TRUE(fitted.ok());
    EXPECT_LT(error_of(*fitted, real), 0.04) << "seed " << seed;
    EXPECT_NEAR(fitted->grad_beta / real.grad_beta, 1, 0.1) << "seed " << seed;
  }
}

TEST(Fit, FindsThemWithoutSyncTimes) {
  const StepModel real = some_step_model();
  auto seen = observed(real, some_spreads(), 0.02, 1);
  for (StepObservation& one : seen) one.sync_s.reset();
  const auto fitted = fitted_model(seen);
  ASSERT_TRUE(fitted.ok());
  EXPECT_LT(error_of(*fitted, real), 0.03);
}

TEST(Fit, FindsThemThroughAccumulatedPasses) {
  const StepModel real = some_step_model();
  std::vector<StepObservation> seen;
  for (const Spread spread : some_spreads())
    for (const double batch : {4.0, 16.0, 64.0})
      for (const std::int64_t passes : {0, 3})
        seen.push_back({.spread = spread,
                        .local_batch = batch,
                        .accumulated = passes,
                        .step_s = real.step_s(spread, batch, passes)});
  const auto fitted = fitted_model(seen);
  ASSERT_TRUE(fitted.ok());
  EXPECT_LT(error_of(*fitted, real), 0.01);
  EXPECT_NEAR(fitted->step_s({4, 16}, 32, 7) / real.step_s({4, 16}, 32, 7), 1, 0.01);
}

TEST(Fit, EqualObservationsGiveAnEqualModel) {
  const auto seen = observed(some_step_model(), some_spreads(), 0.05, 3);
  const auto once = fitted_model(seen);
  const auto twice = fitted_model(seen);
  ASSERT_TRUE(once.ok() && twice.ok());
  EXPECT_EQ(once->step_s({4, 16}, 20), twice->step_s({4, 16}, 20));
  EXPECT_EQ(once->gamma, twice->gamma);
}

TEST(FitPriors, OneGpuScalesPerfectly) {
  const auto fitted = fitted_model(observed(some_step_model(), {{1, 1}}, 0.02, 1));
  ASSERT_TRUE(fitted.ok());
  const double one = fitted->step_s({1, 1}, 16);
  EXPECT_DOUBLE_EQ(fitted->step_s({1, 8}, 16), one);
  EXPECT_DOUBLE_EQ(fitted->step_s({16, 128}, 16), one);
}

TEST(FitPriors, SeveralNodesAreALittleSlowerThanOneUntilTheyAreSeen) {
  const auto fitted = fitted_model(observed(some_step_model(), {{1, 1}, {1, 2}, {1, 4}}, 0.02, 1));
  ASSERT_TRUE(fitted.ok());
  EXPECT_GT(fitted->sync_s({1, 4}), 0);
  EXPECT_DOUBLE_EQ(fitted->sync_s({2, 4}), 1.1 * fitted->sync_s({1, 4}));
}

TEST(FitPriors, OneNodeCostsNothingUntilItIsSeen) {
  const auto fitted = fitted_model(observed(some_step_model(), {{1, 1}, {2, 2}, {4, 4}}, 0.02, 1));
  ASSERT_TRUE(fitted.ok());
  EXPECT_EQ(fitted->sync_s({1, 4}), 0);
  EXPECT_GT(fitted->sync_s({2, 4}), 0);
}

TEST(FitPriors, FurtherGpusCostNothingUntilTheyAreSeen) {
  const auto fitted = fitted_model(observed(some_step_model(), {{1, 1}, {1, 2}, {2, 2}}, 0.02, 1));
  ASSERT_TRUE(fitted.ok());
  EXPECT_EQ(fitted->local_beta, 0);
  EXPECT_EQ(fitted->remote_beta, 0);
  EXPECT_GT(fitted->sync_s({2, 16}), 0);
}

TEST(FitPriors, WithOneBatchHalfOfThePassDoesNotDependOnIt) {
  const auto fitted = fitted_model({{.local_batch = 16, .step_s = 0.8}});
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->grad_alpha, 0.4, 1e-3);
  EXPECT_NEAR(fitted->step_s({1, 1}, 16), 0.8, 1e-3);
  EXPECT_NEAR(fitted->step_s({1, 1}, 32), 1.2, 1e-2);
}

TEST(FitDegenerate, OnePointAndEqualPointsAreFitted) {
  for (const std::size_t count : {1U, 2U, 50U})
    for (const Spread spread : {Spread{1, 1}, Spread{1, 4}, Spread{2, 8}}) {
      const StepObservation one{.spread = spread, .local_batch = 16, .step_s = 0.5};
      const auto fitted = fitted_model(std::vector<StepObservation>(count, one));
      ASSERT_TRUE(fitted.ok());
      expect_usable(*fitted);
      EXPECT_NEAR(fitted->step_s(spread, 16), 0.5, 0.005);
    }
}

TEST(FitDegenerate, EqualStepsOfAllBatchesAreFitted) {
  std::vector<StepObservation> seen;
  for (const double batch : {1.0, 10.0, 1000.0})
    seen.push_back({.local_batch = batch, .step_s = 0.5, .sync_s = 0.0});
  const auto fitted = fitted_model(seen);
  ASSERT_TRUE(fitted.ok());
  EXPECT_NEAR(fitted->step_s({1, 1}, 100), 0.5, 0.01);
}

TEST(FitDegenerate, WhatIsNoStepIsAnError) {
  const auto refused = [](const StepObservation& one) {
    const auto fitted = fitted_model({{.step_s = 1}, one});
    return !fitted.ok() && fitted.error().code() == Code::kInvalid &&
           fitted.error().what().starts_with("observation 1: ");
  };
  EXPECT_FALSE(fitted_model({}).ok());
  EXPECT_FALSE(
      fitted_model(std::vector<StepObservation>(kObservationsMax + 1, {.step_s = 1})).ok());
  for (const double bad : {0.0, -1.0, kNan, kInfinity, 1e300}) {
    EXPECT_TRUE(refused({.step_s = bad}));
    EXPECT_TRUE(refused({.local_batch = bad, .step_s = 1}));
  }
  EXPECT_TRUE(refused({.step_s = 1, .sync_s = 1.0}));
  EXPECT_TRUE(refused({.step_s = 1, .sync_s = -0.1}));
  EXPECT_TRUE(refused({.step_s = 1, .sync_s = kNan}));
  EXPECT_TRUE(refused({.accumulated = -1, .step_s = 1}));
  EXPECT_TRUE(refused({.spread = {0, 0}, .step_s = 1}));
  EXPECT_TRUE(refused({.spread = {2, 1}, .step_s = 1}));
}

TEST(FitDegenerate, AnythingWithinTheBoundsGivesAUsableModel) {
  Rng rng(1);
  const std::array<double, 7> seconds = {1e-9, 1e-6, 0.1, 0.1, 1, 1e6, 1e9};
  const std::array<double, 5> batches = {1e-9, 1, 16, 4096, 1e12};
  const std::array<std::int64_t, 6> sizes = {1, 1, 2, 8, 1000, std::int64_t{1} << 62U};
  for (int round = 0; round < 100; ++round) {
    std::vector<StepObservation> seen(1 + rng.below(8));
    for (StepObservation& one : seen) {
      one.spread.nodes = sizes[rng.below(sizes.size())];
      one.spread.gpus = std::max(one.spread.nodes, sizes[rng.below(sizes.size())]);
      one.local_batch = batches[rng.below(batches.size())];
      one.accumulated = rng.chance(0.2) ? std::int64_t{1} << rng.below(63) : 0;
      one.step_s = seconds[rng.below(seconds.size())];
      if (rng.chance(0.5)) one.sync_s = one.step_s * rng.unit();
    }
    const auto fit = fit_step(seen);
    ASSERT_TRUE(fit.ok()) << "round " << round;
    expect_usable(fit->model());
    for (const StepObservation& one : seen) {
      const StepPrediction step = fit->predict(one.spread, one.local_batch, one.accumulated);
      EXPECT_TRUE(std::isfinite(step.seconds));
      EXPECT_TRUE(std::isfinite(step.most_s));
      EXPECT_LT(step.least_s, step.seconds);
      EXPECT_LT(step.seconds, step.most_s);
    }
  }
}

// The share of steps drawn like the observed ones, of a model fitted to `seen`, that lie in its
// band.
double covered(const StepFit& fit, const std::vector<StepObservation>& drawn) {
  double count = 0;
  for (const StepObservation& one : drawn) {
    const StepPrediction step = fit.predict(one.spread, one.local_batch);
    if (one.step_s >= step.least_s && one.step_s <= step.most_s) ++count;
  }
  return count / static_cast<double>(drawn.size());
}

TEST(FitBand, HoldsNineInTenOfWhatIsObservedNext) {
  const std::vector<Spread> unseen = {{1, 3}, {1, 6}, {2, 4}, {3, 12}, {4, 32}};
  for (const double noise : {0.02, 0.1}) {
    double sum = 0;
    constexpr int kRounds = 20;
    for (std::uint64_t seed = 1; seed <= kRounds; ++seed) {
      const auto fit = fit_step(observed(some_step_model(), some_spreads(), noise, seed));
      ASSERT_TRUE(fit.ok());
      sum += covered(*fit, observed(some_step_model(), unseen, noise, 1000 + seed));
    }
    EXPECT_GT(sum / kRounds, 0.85) << "noise " << noise;
    EXPECT_LT(sum / kRounds, 0.95) << "noise " << noise;
  }
}

// Whole placements that are slower or faster than the model can say, as a network makes them.
TEST(FitBand, HoldsNineInTenWherePlacementsDifferMoreThanTheNoise) {
  const auto with_misfit = [](std::uint64_t seed) {
    Rng rng(seed);
    std::vector<StepObservation> all;
    for (std::int64_t nodes = 2; nodes <= 13; ++nodes)
      for (const Gpus each : {1, 2, 4}) {
        StepModel own = some_step_model();
        const double factor = std::exp(0.2 * normal(rng));
        own.remote_alpha *= factor;
        own.remote_beta *= factor;
        const auto steps = observed(own, {{nodes, nodes * each}}, 0.01, rng.next());
        all.insert(all.end(), steps.begin(), steps.end());
      }
    return all;
  };
  double sum = 0;
  constexpr int kRounds = 10;
  for (std::uint64_t seed = 1; seed <= kRounds; ++seed) {
    const auto fit = fit_step(with_misfit(seed));
    ASSERT_TRUE(fit.ok());
    sum += covered(*fit, with_misfit(100 + seed));
  }
  EXPECT_GT(sum / kRounds, 0.85);
  EXPECT_LT(sum / kRounds, 0.95);
}

double width(const StepFit& fit, Spread spread) {
  const StepPrediction step = fit.predict(spread, 16);
  return std::log(step.most_s / step.least_s);
}

TEST(FitBand, IsWiderTheFurtherAwayAndWidestWhereNothingWasSeen) {
  const auto fit = fit_step(observed(some_step_model(), {{1, 1}, {1, 2}, {1, 4}}, 0.02, 1));
  ASSERT_TRUE(fit.ok());
  EXPECT_LT(width(*fit, {1, 4}), width(*fit, {1, 64}));
  EXPECT_LT(width(*fit, {1, 64}), width(*fit, {2, 64}));
  EXPECT_GT(width(*fit, {2, 4}), 2 * 1.6 * kUnseenError);
}

TEST(FitBand, IsNarrowerWithMoreObservations) {
  const auto few = fit_step({{.local_batch = 16, .step_s = 0.8}});
  const auto many = fit_step(observed(some_step_model(), {{1, 1}}, 0.02, 1));
  ASSERT_TRUE(few.ok() && many.ok());
  EXPECT_GT(width(*few, {1, 1}), 2 * kPriorError);
  EXPECT_LT(width(*many, {1, 1}), width(*few, {1, 1}) / 2);
}

TEST(FitBand, HasStudentsQuantile) {
  EXPECT_NEAR(student_quantile(1), 6.314, 1e-3);
  EXPECT_NEAR(student_quantile(2), 2.920, 0.05);
  EXPECT_NEAR(student_quantile(5), 2.015, 0.01);
  EXPECT_NEAR(student_quantile(30), 1.697, 1e-3);
  EXPECT_NEAR(student_quantile(1e9), 1.645, 1e-3);
}

}  // namespace
}  // namespace rubato::sched
