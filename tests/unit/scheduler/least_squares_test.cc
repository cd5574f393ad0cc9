#include "scheduler/perf/least_squares.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr std::size_t kGroup = 1;

Residual residual(double value, Slopes slopes, std::size_t group) {
  return {.value = value, .slopes = slopes, .group = group};
}

// Rosenbrock's valley: its lowest point is (1, 1).
void rosenbrock(const Slopes& at, std::vector<Residual>& to) {
  to.push_back(residual(10 * (at[1] - at[0] * at[0]), {-20 * at[0], 10}, kGroup));
  to.push_back(residual(1 - at[0], {-1}, kGroup));
}

TEST(LeastSquares, FindsTheBottomOfAValley) {
  const auto found = minimise({{{-5, 5}, {-5, 5}}, rosenbrock}, {-1.2, 1});
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->at[0], 1, 1e-4);
  EXPECT_NEAR(found->at[1], 1, 1e-4);
  EXPECT_LT(found->iterations, kIterationsMax);
}

TEST(LeastSquares, KeepsToTheRanges) {
  const auto found = minimise({{{-5, 0.5}, {-5, 5}}, rosenbrock}, {-1.2, 1});
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->at[0], 0.5);
  EXPECT_NEAR(found->at[1], 0.25, 1e-4);
}

TEST(LeastSquares, LeavesFixedParametersAlone) {
  const auto found = minimise({{{2, 2}, {-50, 50}}, rosenbrock}, {0, 0});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->at[0], 2);
  EXPECT_NEAR(found->at[1], 4, 1e-4);
}

TEST(LeastSquares, RootsOfMeansAreAddedUp) {
  // |x - 3| + (x / 4)^2: lowest where x / 8 = 1, or at 3, where the root's edge is.
  const auto residuals = [](const Slopes& at, std::vector<Residual>& to) {
    to.push_back(residual(at[0] - 3, {1}, kGroup));
    to.push_back(residual(at[0] / 4, {0.25}, kPenalty));
  };
  const auto found = minimise({{{-10, 10}}, residuals}, {-8});
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->at[0], 3, 1e-3);
  EXPECT_NEAR(found->value, 9.0 / 16, 1e-3);
}

TEST(LeastSquares, AParameterThatChangesNothingStaysFinite) {
  const auto residuals = [](const Slopes& at, std::vector<Residual>& to) {
    to.push_back(residual(at[0] - 1, {1}, kGroup));
  };
  const auto found = minimise({{{-10, 10}, {-10, 10}}, residuals}, {0, 4});
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->at[0], 1, 1e-3);
  EXPECT_TRUE(std::isfinite(found->at[1]));
}

TEST(LeastSquares, WhatIsNotFiniteAtTheStartIsNoMinimum) {
  const auto residuals = [](const Slopes&, std::vector<Residual>& to) {
    to.push_back(residual(std::numeric_limits<double>::quiet_NaN(), {1}, kGroup));
  };
  EXPECT_FALSE(minimise({{{-10, 10}}, residuals}, {0}));
}

TEST(NormalMatrix, SolvesWhatIsPositiveDefiniteOnly) {
  NormalMatrix matrix(2);
  matrix.add({1, 2}, 1);
  EXPECT_FALSE(matrix.solve({1, 1}));
  matrix.add({0, 1}, 4);
  const auto x = matrix.solve({3, 14});
  ASSERT_TRUE(x);
  EXPECT_NEAR((*x)[0] + 2 * (*x)[1], 3, 1e-12);
  EXPECT_NEAR(2 * (*x)[0] + 8 * (*x)[1], 14, 1e-12);
  matrix.drop(0);
  EXPECT_EQ((*matrix.solve({0, 8}))[0], 0);
}

}  // namespace
}  // namespace rubato::sched
