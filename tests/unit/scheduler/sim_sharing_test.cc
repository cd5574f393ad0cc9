// Two jobs on the same GPUs in the simulator, computed by hand.
#include "tests/unit/scheduler/sim_traces.h"

namespace rubato::sched::sim {
namespace {

TraceJob with_use(TraceJob job, double busy, std::int64_t priority = 0) {
  job.sharing = SharingProfile{.use = {.busy = busy, .memory = 0, .beside_another = 0.9}};
  job.priority = priority;
  return job;
}

// One GPU. b starts on that of a at 5 and trains from 15; both keep their speed.
TEST(SimSharing, NothingIsLostWhereBothFit) {
  const SimResult result =
      play("1x1:A", {with_use(rigid("a", 0, 1, 100), 0.4), with_use(rigid("b", 5, 1, 50), 0.4)},
           "lucid");
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_EQ(start_s(result, "b"), 5);
  EXPECT_EQ(finish_s(result, "b"), 65);
  EXPECT_EQ(of(result, "a").gpu_ms, 110'000);
  EXPECT_EQ(of(result, "b").gpu_ms, 0);  // it held none
}

// From 20 on both have 1 / 1.6 = 0.625 of their speed. b trains from 30: 50 / 0.625 = 80, until
// 110. By then a has done 10 + 90 * 0.625 = 66.25 of 100, and does the rest alone.
TEST(SimSharing, BothLoseWhereTheGpuIsNotEnough) {
  const SimResult result =
      play("1x1:A", {with_use(rigid("a", 0, 1, 100), 0.8), with_use(rigid("b", 20, 1, 50), 0.8)},
           "lucid");
  EXPECT_NEAR(finish_s(result, "b"), 110, 0.01);
  EXPECT_NEAR(finish_s(result, "a"), 143.75, 0.01);
}

// a ends at 70, b has its GPU for itself until 15 + 100, and only then c, which asks for more of a
// GPU than anybody leaves.
TEST(SimSharing, AGuestHasTheGpusOfItsHostOnceThatEnds) {
  TraceJob c = rigid("c", 6, 1, 20);
  const SimResult result =
      play("1x1:A", {with_use(rigid("a", 0, 1, 60), 0.4), with_use(rigid("b", 5, 1, 100), 0.4), c},
           "lucid");
  EXPECT_EQ(finish_s(result, "a"), 70);
  EXPECT_EQ(finish_s(result, "b"), 115);
  EXPECT_EQ(of(result, "b").gpu_ms, 45'000);
  EXPECT_EQ(start_s(result, "c"), 115);
  EXPECT_EQ(finish_s(result, "c"), 145);
}

// a loses nothing. b, opportunistic, gets 1 - 0.75 of the GPU where it asks for half: half speed.
// It trains from 15 to 110 beside a: 47.5 of 100, the rest alone.
TEST(SimSharing, AntMansGuestsGetWhatIsLeft) {
  const SimResult result = play(
      "1x1:A", {with_use(rigid("a", 0, 1, 100), 0.75), with_use(rigid("b", 5, 1, 100), 0.5, -1)},
      "antMan");
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_NEAR(finish_s(result, "b"), 162.5, 0.01);
}

// Measured: 0.3 of their speed each, which is known 10 s after b has begun at 15. It stops then,
// and its turn comes when the quantum of a is over, at 60; a is back once b has had as much.
TEST(SimSharing, GandivaUndoesWhatIsNotWorthIt) {
  TraceJob a = with_use(rigid("a", 0, 1, 100), 0.4), b = with_use(rigid("b", 5, 1, 20), 0.4);
  a.profile = "a";
  b.profile = "b";
  a.sharing->measured = b.sharing->measured = std::make_shared<const SharingProfile::Measured>(
      SharingProfile::Measured{{{"a", "A"}, 0.3}, {{"b", "A"}, 0.3}});
  const SimResult result = play("1x1:A", {a, b}, "gandiva");
  EXPECT_EQ(of(result, "b").preemptions, 1);
  EXPECT_EQ(of(result, "b").restarts, 1);
  EXPECT_EQ(of(result, "a").preemptions, 1);
  // 60 + 20 to start again + 20 - 10 * 0.3 of work.
  EXPECT_NEAR(finish_s(result, "b"), 97, 0.01);
}

// Pairs of Gavel's table: each job of a pair at its own rate.
TEST(SimSharing, MeasuredPairsAreHeard) {
  TraceJob a = with_use(rigid("a", 0, 1, 100), 0.4), b = with_use(rigid("b", 5, 1, 50), 0.4);
  a.profile = "a";
  b.profile = "b";
  a.sharing->measured = b.sharing->measured =
      std::make_shared<const SharingProfile::Measured>(SharingProfile::Measured{{{"b", "A"}, 0.5}});
  const SimResult result = play("1x1:A", {a, b}, "lucid");
  EXPECT_EQ(finish_s(result, "b"), 65);
  EXPECT_EQ(finish_s(result, "a"), 137.5);  // 55 s at half its speed
}

}  // namespace
}  // namespace rubato::sched::sim
