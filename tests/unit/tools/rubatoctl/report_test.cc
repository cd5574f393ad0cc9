#include "tools/rubatoctl/demo/report.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

void add(StepsSeen& steps, std::int64_t step, int gpus, std::int64_t generation, double at) {
  LossLine line;
  line.step = step;
  line.gpus = gpus;
  line.generation = generation;
  steps[step] = {line, WallTime{} + std::chrono::milliseconds(static_cast<int>(at * 1000))};
}

TEST(Costs, GapAgainstTheUsualStep) {
  StepsSeen steps;
  for (int i = 1; i <= 5; ++i) add(steps, i, 4, 3, i * 0.5);
  add(steps, 6, 3, 4, 3.75);  // 1.25 s after the fifth
  add(steps, 7, 3, 4, 4.25);
  const auto costs =
      costs_of(steps, {{4, "recover: pod a on node b lost; 6 of 8 micro-batches kept", 0.7}});
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].step, 6);
  EXPECT_EQ(costs[0].from, 4);
  EXPECT_EQ(costs[0].to, 3);
  EXPECT_NEAR(costs[0].gap_seconds, 1.25, 1e-9);
  EXPECT_NEAR(costs[0].usual_seconds, 0.5, 1e-9);
  EXPECT_EQ(costs[0].reason, "recover: pod a on node b lost; 6 of 8 micro-batches kept");
  EXPECT_EQ(cost_table(costs).rows[0][2], "0.70s");
}

TEST(Costs, WithoutTheOperatorsWordTheGapTells) {
  StepsSeen steps;
  for (int i = 1; i <= 3; ++i) add(steps, i, 2, 1, i);
  add(steps, 4, 3, 2, 5.5);
  const auto table = cost_table(costs_of(steps, {}));
  EXPECT_EQ(table.rows[0],
            (std::vector<std::string>{"4", "2 to 3", "1.50s", "2.50s", "1.00s", "-"}));
}

TEST(PaceOf, TheLastSteps) {
  StepsSeen steps;
  for (int i = 1; i <= 30; ++i) add(steps, i, 2, 1, i * 0.25);
  const Pace pace = pace_of(steps, 50, 100);
  EXPECT_NEAR(pace.tokens_per_second, 400, 1e-6);
  EXPECT_NEAR(pace.remaining_seconds, 5, 1e-6);
  EXPECT_LT(pace_of({}, 50, 100).remaining_seconds, 0);
}

}  // namespace
}  // namespace rubato::ctl
