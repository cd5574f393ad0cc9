// Jobs that are sensitive to CPU and memory in the simulator, computed by hand.
#include "tests/unit/scheduler/sim_traces.h"

namespace rubato::sched::sim {
namespace {

TraceJob wants(TraceJob job, MilliCpu cpu) {
  job.sensitivity = {{{cpu, 1}, 1}};
  return job;
}

SimResult play_on(const CpuMemory& of_node, std::vector<TraceJob> jobs, const std::string& policy) {
  return play("1x4:A", std::move(jobs), policy, {.costs = simple_costs(), .of_node = of_node});
}

// 2 CPUs for each GPU, where "hungry" asks for 3: two thirds of its speed. Under `synergy` it has
// what "modest" leaves.
TEST(SimCpuMemory, SynergyGivesWhatOthersLeave) {
  const std::vector<TraceJob> jobs{wants(rigid("hungry", 0, 2, 100), 3000),
                                   wants(rigid("modest", 0, 2, 200), 1000)};
  const SimResult proportional = play_on({8000, 4}, jobs, "fifo");
  EXPECT_NEAR(finish_s(proportional, "hungry"), 10 + 150, 0.01);
  EXPECT_EQ(finish_s(proportional, "modest"), 210);
  const SimResult shared = play_on({8000, 4}, jobs, "synergy");
  EXPECT_EQ(finish_s(shared, "hungry"), 110);
  EXPECT_EQ(finish_s(shared, "modest"), 210);
  EXPECT_EQ(finish_s(play("1x4:A", jobs, "fifo"), "hungry"), 110);  // nothing is said of nodes
}

// Both ask for 4. The first has 4 as long as it is alone, which is until 50: 40 of 100 are done.
// Then both have 2, half of their speed, until it ends: at 50 + 120.
TEST(SimCpuMemory, WhatIsBeyondTheProportionalShareIsTakenBack) {
  const SimResult result = play_on(
      {8000, 4}, {wants(rigid("first", 0, 2, 100), 4000), wants(rigid("second", 50, 2, 100), 4000)},
      "synergy");
  EXPECT_NEAR(finish_s(result, "first"), 50 + 120, 0.01);
  // From 60 on it trains at half its speed, from 170 on alone: 55 of 100 by then.
  EXPECT_NEAR(finish_s(result, "second"), 170 + 45, 0.01);
}

}  // namespace
}  // namespace rubato::sched::sim
