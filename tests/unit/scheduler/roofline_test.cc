#include "scheduler/perf/roofline.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Work that meets a roof: layers in fixed proportion, each with its launches.
std::vector<LayerTimes> layers_on(double speed) {
  std::vector<LayerTimes> layers;
  for (const double work : {1.0, 4.0, 4.0, 10.0}) {
    LayerTimes times;
    for (const double batch : {1.0, 2.0, 8.0})
      times.push_back({batch, work * (0.5 + batch) / speed});
    layers.push_back(times);
  }
  return layers;
}

double pass_on(double speed, double batch) { return 19 * (0.5 + batch) / speed; }

TEST(Roofline, TwoPointsOfALayerScaleTheWholePass) {
  const auto pass =
      PassTimes::scaled({{1, 4 * 1.5 / 7}, {8, 4 * 8.5 / 7}}, 1, {layers_on(1), layers_on(3)});
  ASSERT_TRUE(pass.ok());
  for (const double batch : {1.0, 3.0, 8.0, 32.0}) {
    EXPECT_NEAR(pass->pass_s(batch), pass_on(7, batch), 1e-9);
    EXPECT_NEAR(pass->layer_s(3, batch), 10 * (0.5 + batch) / 7, 1e-9);
  }
}

TEST(Roofline, OneTypeThatMeetsAnotherRoofDoesNotMoveTheMedian) {
  auto odd = layers_on(2);
  for (LayerTime& time : odd[3]) time.seconds *= 100;
  const auto pass =
      PassTimes::scaled({{1, 4 * 1.5 / 7}, {8, 4 * 8.5 / 7}}, 1, {layers_on(1), layers_on(3), odd});
  ASSERT_TRUE(pass.ok());
  EXPECT_NEAR(pass->pass_s(4), pass_on(7, 4), 1e-9);
}

TEST(Roofline, InterpolatesAlongLinesAndNeverFallsToZero) {
  const LayerTimes times = {{1, 2}, {2, 3}, {4, 9}};
  EXPECT_DOUBLE_EQ(interpolated(times, 1.5), 2.5);
  EXPECT_DOUBLE_EQ(interpolated(times, 3), 6);
  EXPECT_DOUBLE_EQ(interpolated(times, 6), 15);
  EXPECT_DOUBLE_EQ(interpolated({{1, 2}}, 100), 2);
  EXPECT_DOUBLE_EQ(interpolated({{1, 9}, {2, 1}}, 50), 0.1);
}

TEST(Roofline, WhatCannotBeScaledIsAnError) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::vector<LayerTimes>> known = {layers_on(1)};
  EXPECT_TRUE(PassTimes::scaled({{1, 1}, {2, 2}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 1}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{2, 1}, {1, 2}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 0}, {2, 2}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, nan}, {2, 2}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{0, 1}, {2, 2}}, 0, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 1}, {2, 2}}, 4, known).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 1}, {2, 2}}, 0, {}).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 1}, {2, 2}}, 0, {layers_on(1), {{{1, 1}}}}).ok());
  EXPECT_FALSE(PassTimes::scaled({{1, 1}, {2, 2}}, 0, {{{}}}).ok());
}

}  // namespace
}  // namespace rubato::sched
