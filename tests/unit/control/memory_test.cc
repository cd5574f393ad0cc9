#include "operator/control/memory.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

using coordinator::GpuSeconds;

TEST(Memory, GpuTimeGoesOnOverCountsOfTheCoordinator) {
  Memory memory;
  const GpuSeconds written{.useful = 100, .queue = 5};
  const MonoTime first{1h};
  const MonoTime second{2h};
  EXPECT_EQ(memory.gpu_seconds("u", written, first, {.useful = 10}).useful, 110);
  // The status that we read may be older than what we wrote: it is asked only once.
  EXPECT_EQ(memory.gpu_seconds("u", {}, first, {.useful = 20}).useful, 120);
  const GpuSeconds all = memory.gpu_seconds("u", {}, second, {.useful = 1, .failure = 2});
  EXPECT_EQ(all, (GpuSeconds{.useful = 121, .queue = 5, .failure = 2}));
}

TEST(Memory, TheSameAgainIsNoNews) {
  Memory memory;
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
  EXPECT_FALSE(memory.is_news("a", "Running", "+Training"));
  EXPECT_TRUE(memory.is_news("b", "Running", "+Training"));
  EXPECT_TRUE(memory.is_news("a", "Suspended", "+Suspended"));
  EXPECT_TRUE(memory.is_news("a", "Running", "-Suspended"));
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
  memory.forget_job("a");
  EXPECT_TRUE(memory.is_news("a", "Running", "+Training"));
}

}  // namespace
}  // namespace rubato::control
