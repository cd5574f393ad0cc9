// Which point of a job's goodput table holds.
#include "scheduler/perf/goodput_table.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Job with_points(std::vector<GoodputPoint> goodput) {
  Job job;
  job.goodput = std::move(goodput);
  return job;
}

TEST(GoodputTable, ThePointWithMostNodesThatAreNotTooMany) {
  const GoodputTable table(
      with_points({{"A", 4, 4, 10}, {"A", 4, 1, 30}, {"A", 4, 2, 20}, {"B", 4, 1, 99}}), "A");
  EXPECT_EQ(table.at(4, 1), 30);
  EXPECT_EQ(table.at(4, 2), 20);
  EXPECT_EQ(table.at(4, 3), 20);
  EXPECT_EQ(table.at(4, 9), 10);
  EXPECT_EQ(table.most(), 4);
}

TEST(GoodputTable, FewerNodesThanAnyPointHas) {
  EXPECT_EQ(GoodputTable(with_points({{"A", 4, 3, 10}, {"A", 4, 2, 20}}), "A").at(4, 1), 20);
}

// A second each on 1 GPU and a half on 4 are c = 2/3, r = 1/3.
TEST(GoodputTable, BetweenCountsAsThroughputIs) {
  const GoodputTable table(with_points({{"A", 1, 0, 1}, {"A", 4, 1, 2}, {"A", 4, 2, 0.5}}), "A");
  EXPECT_NEAR(table.at(2, 1), 1.5, 1e-12);
}

TEST(GoodputTable, WithoutATableWhatWasMeasured) {
  Job job = with_points({{"B", 64, 1, 1}});
  job.min = 2;
  job.measured = {{"A", 3, 100}};
  EXPECT_EQ(GoodputTable(job, "A").at(3, 1), 100);
  EXPECT_EQ(GoodputTable(job, "A").most(), 6);
  job.measured.clear();
  EXPECT_FALSE(GoodputTable(job, "A").is_known());
  EXPECT_EQ(GoodputTable(job, "A").most(), 2);
  EXPECT_EQ(GoodputTable(job, "A").at(0, 1), 0);
}

}  // namespace
}  // namespace rubato::sched
