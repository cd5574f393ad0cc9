#include "tools/rubatoctl/demo/schedule.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(DemoSchedule, EachActOnceAndInOrder) {
  DemoSchedule schedule({15, 40, 60});
  EXPECT_EQ(schedule.next(0, 0), std::nullopt);
  EXPECT_EQ(schedule.next(14, 2), std::nullopt);
  EXPECT_EQ(schedule.next(15, 2), DemoAct::kGrow);
  EXPECT_EQ(schedule.next(45, 3), std::nullopt);  // not all are there yet
  EXPECT_EQ(schedule.missing(), "the growth to 4 GPUs");
  EXPECT_EQ(schedule.next(46, 4), DemoAct::kLose);
  EXPECT_EQ(schedule.next(47, 4), std::nullopt);
  EXPECT_EQ(schedule.next(61, 3), DemoAct::kReplace);
  EXPECT_EQ(schedule.next(62, 3), std::nullopt);
  EXPECT_FALSE(schedule.is_through());
  EXPECT_EQ(schedule.next(70, 4), std::nullopt);
  EXPECT_TRUE(schedule.is_through());
  EXPECT_EQ(schedule.missing(), "");
}

TEST(DemoSchedule, ActsFollowTheLengthOfTheJob) {
  const DemoSteps steps = demo_steps(600);
  EXPECT_EQ(steps.grow, 90);
  EXPECT_EQ(steps.lose, 240);
  EXPECT_EQ(steps.replace, 360);
}

}  // namespace
}  // namespace rubato::ctl
