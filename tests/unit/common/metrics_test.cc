#include "common/metrics.h"

#include <gtest/gtest.h>

namespace rubato {
namespace {

TEST(Metrics, TheSameNameAndLabelsGiveTheSameHandle) {
  Metrics metrics;
  Counter& a = metrics.counter("rubato_rounds_total", "Rounds", {{"policy", "goodput"}});
  Counter& b = metrics.counter("rubato_rounds_total", "Rounds", {{"policy", "goodput"}});
  Counter& c = metrics.counter("rubato_rounds_total", "Rounds", {{"policy", "fifo"}});
  EXPECT_EQ(&a, &b);
  EXPECT_NE(&a, &c);
  a.add();
  b.add(2);
  EXPECT_EQ(a.value(), 3);
  Gauge& gauge = metrics.gauge("rubato_gpus", "GPUs");
  gauge.set(8);
  gauge.add(-3);
  EXPECT_EQ(gauge.value(), 5);
}

TEST(Metrics, ExposesTheTextFormat) {
  Metrics metrics;
  metrics.counter("rubato_rounds_total", "Rounds", {{"policy", "a\"b"}}).add(7);
  Histogram& histogram = metrics.histogram("rubato_round_seconds", "Length", {}, {0.1, 1});
  histogram.observe(0.05);
  histogram.observe(0.5);
  histogram.observe(5);
  const std::string text = metrics.expose();
  for (const char* line :
       {"# HELP rubato_rounds_total Rounds\n", "# TYPE rubato_rounds_total counter\n",
        "rubato_rounds_total{policy=\"a\\\"b\"} 7\n", "# TYPE rubato_round_seconds histogram\n",
        "rubato_round_seconds_count 3\n", "rubato_round_seconds_bucket{le=\"1\"} 2\n",
        "rubato_round_seconds_bucket{le=\"+Inf\"} 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
  }
}

TEST(MetricsDeathTest, OneNameHasOneType) {
  EXPECT_DEATH(
      {
        Metrics metrics;
        metrics.counter("rubato_x", "x");
        metrics.gauge("rubato_x", "x");
      },
      "metric rubato_x: ");
}

}  // namespace
}  // namespace rubato
