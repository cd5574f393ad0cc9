#include "common/stall_watch.h"

#include "common/testing/sim_executor.h"

#include <gtest/gtest.h>

namespace rubato {
namespace {

TEST(StallWatch, KnowsWhenAProcessSlept) {
  testing::SimExecutor sim(1);
  testing::SimProcess& process = sim.process("operator");
  StallWatch watch(process);
  sim.run_for(10s);
  EXPECT_EQ(watch.awake_since(), MonoTime{}) << "it was awake all the time";
  process.freeze();
  sim.run_for(3s);
  process.thaw();
  const MonoTime woke = process.now();
  EXPECT_EQ(watch.awake_since(), woke) << "before its own task has run";
  sim.run_for(10s);
  EXPECT_GE(watch.awake_since(), woke);
  EXPECT_LE(watch.awake_since(), woke + kStallPeriod);
}

TEST(StallWatch, AShortDelayIsNoSleep) {
  testing::SimExecutor sim(1);
  testing::SimProcess& process = sim.process("operator");
  StallWatch watch(process);
  for (int i = 0; i < 10; ++i) {
    process.freeze();
    sim.run_for(kStallBound - 10ms);
    process.thaw();
    sim.run_for(1s);
  }
  EXPECT_EQ(watch.awake_since(), MonoTime{});
}

}  // namespace
}  // namespace rubato
