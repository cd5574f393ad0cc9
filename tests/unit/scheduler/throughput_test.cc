#include "scheduler/perf/throughput.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

TEST(Throughput, FitsItsOwnModel) {
  // t(n) = 0.8/n + 0.2 seconds for one token.
  std::vector<ThroughputPoint> points;
  for (Gpus n : {1, 2, 4}) {
    points.push_back({"A", n, 1.0 / (0.8 / static_cast<double>(n) + 0.2)});
  }
  const Throughput speed(points, "A");
  EXPECT_TRUE(speed.is_measured());
  EXPECT_NEAR(speed.at(8), 1.0 / (0.1 + 0.2), 1e-9);
}

TEST(Throughput, PassesThroughASinglePoint) {
  const Throughput speed({{"A", 2, 1000}}, "A");
  EXPECT_NEAR(speed.at(2), 1000, 1e-6);
  EXPECT_GT(speed.at(4), 1000);
  EXPECT_LT(speed.at(4), 2000);
}

TEST(Throughput, PriorHasDiminishingReturns) {
  const Throughput speed({{"B", 2, 1000}}, "A");
  EXPECT_FALSE(speed.is_measured());
  EXPECT_EQ(speed.at(0), 0);
  EXPECT_GT(speed.at(2) - speed.at(1), speed.at(3) - speed.at(2));
}

}  // namespace
}  // namespace rubato::sched
