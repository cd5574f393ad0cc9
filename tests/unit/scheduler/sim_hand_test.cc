// The simulator against traces computed by hand. Each comment is the computation.
#include "tests/unit/scheduler/sim_traces.h"

namespace rubato::sched::sim {
namespace {

// Starts for 10 s, trains for 100 s: 110. It holds 2 GPUs for all of it.
TEST(SimByHand, OneJob) {
  const SimResult result = play("1x4:A", {rigid("a", 0, 2, 100)}, "fifo");
  EXPECT_EQ(start_s(result, "a"), 0);
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_EQ(of(result, "a").gpu_ms, 2 * 110'000);
  EXPECT_EQ(of(result, "a").training_gpu_ms, 2 * 100'000);
  EXPECT_EQ(of(result, "a").restarts, 0);
}

// a: 0 to 110 on all 4. b and c wait. At 110 both fit: 10 s and 50 s, 10 s and 20 s.
TEST(SimByHand, FifoWaitsForRoom) {
  const SimResult result =
      play("1x4:A", {rigid("a", 0, 4, 100), rigid("b", 5, 2, 50), rigid("c", 6, 2, 20)}, "fifo");
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_EQ(start_s(result, "b"), 110);
  EXPECT_EQ(finish_s(result, "b"), 170);
  EXPECT_EQ(finish_s(result, "c"), 140);
}

// a holds 3 of 4 until 110. b needs 4 and holds up c, which needs the free one: b 110 to 170, then
// c.
TEST(SimByHand, FifoHeadOfLineBlocks) {
  const std::vector<TraceJob> jobs = {rigid("a", 0, 3, 100), rigid("b", 5, 4, 50),
                                      rigid("c", 6, 1, 20)};
  const SimResult strict = play("1x4:A", jobs, "fifo");
  EXPECT_EQ(start_s(strict, "b"), 110);
  EXPECT_EQ(start_s(strict, "c"), 170);
  EXPECT_EQ(finish_s(strict, "c"), 200);
  // With backfill c starts when it comes: 6 + 10 + 20 = 36, and b is not late for it.
  const SimResult backfill = play("1x4:A", jobs, "fifoBackfill");
  EXPECT_EQ(start_s(backfill, "c"), 6);
  EXPECT_EQ(finish_s(backfill, "c"), 36);
  EXPECT_EQ(finish_s(backfill, "b"), 170);
}

// Three jobs of one GPU arrive at once for one GPU: by id, whatever the order in the trace.
TEST(SimByHand, TiesByJobId) {
  const SimResult result =
      play("1x1:A", {rigid("c", 0, 1, 10), rigid("a", 0, 1, 10), rigid("b", 0, 1, 10)}, "fifo");
  EXPECT_EQ(finish_s(result, "a"), 20);
  EXPECT_EQ(finish_s(result, "b"), 40);
  EXPECT_EQ(finish_s(result, "c"), 60);
}

// At 0 the long one starts (it is alone). At 1 b (50 s) and c (20 s) wait: c goes first at 110.
TEST(SimByHand, SjfDoesNotPreempt) {
  const SimResult result =
      play("1x1:A", {rigid("a", 0, 1, 100), rigid("b", 1, 1, 50), rigid("c", 1, 1, 20)}, "sjf");
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_EQ(finish_s(result, "c"), 140);
  EXPECT_EQ(finish_s(result, "b"), 200);
  EXPECT_EQ(of(result, "a").preemptions, 0);
}

// a starts at 0 and trains from 10; at 30 it has 80 s left. b (20 s) preempts it at 30: 40 to 60.
// At 60 a starts again: 20 s of restart, 80 s of training: 160. It held 30 + 100 s.
TEST(SimByHand, SrtfPreemptsAndPaysTheRestart) {
  const SimResult result = play("1x1:A", {rigid("a", 0, 1, 100), rigid("b", 30, 1, 20)}, "srtf");
  EXPECT_EQ(finish_s(result, "b"), 60);
  EXPECT_EQ(finish_s(result, "a"), 160);
  EXPECT_EQ(of(result, "a").preemptions, 1);
  EXPECT_EQ(of(result, "a").restarts, 1);
  EXPECT_EQ(of(result, "a").gpu_ms, 130'000);
  EXPECT_EQ(of(result, "a").training_gpu_ms, 100'000);
}

// The same with 5 s until GPUs are free: b starts at 35, ends at 65; a's GPU time counts until 35.
// b's GPU is free at 70: a restarts there, trains from 90, ends at 170, and its GPU is free at 175.
TEST(SimByHand, LeaversKeepTheirGpusForAWhile) {
  const SimResult result =
      play("1x1:A", {rigid("a", 0, 1, 100), rigid("b", 30, 1, 20)}, "srtf", gentle_costs());
  EXPECT_EQ(start_s(result, "b"), 35);
  EXPECT_EQ(finish_s(result, "b"), 65);
  EXPECT_EQ(finish_s(result, "a"), 170);
  EXPECT_EQ(of(result, "a").gpu_ms, 35'000 + 105'000);
  EXPECT_EQ(of(result, "b").gpu_ms, 35'000);
  EXPECT_EQ(result.samples.back().held, 0);
  EXPECT_EQ(result.samples.back().at_ms, 175'000);
}

// b has the longer time left, but less service: 60 s on 1 GPU against 50 s on 4. srsf preempts a at
// 10, when it is about to train; srtf does not.
TEST(SimByHand, SrsfCountsGpus) {
  const std::vector<TraceJob> jobs = {rigid("a", 0, 4, 50), rigid("b", 10, 1, 60)};
  EXPECT_EQ(of(play("1x4:A", jobs, "srtf"), "a").preemptions, 0);
  const SimResult result = play("1x4:A", jobs, "srsf");
  EXPECT_EQ(of(result, "a").preemptions, 1);
  EXPECT_EQ(finish_s(result, "b"), 80);   // 10 + 10 + 60
  EXPECT_EQ(finish_s(result, "a"), 150);  // 80 + 20 + 50
}

// Alone on 4 GPUs an elastic job takes all of them at once: 400 units at 4 a second, 10 s of start.
TEST(SimByHand, MakePlanStartsAtTheSizeThatFits) {
  const SimResult result = play("1x4:A", {linear("a", 0, 1, 4, 400)}, "marginalThroughput");
  EXPECT_EQ(finish_s(result, "a"), 110);
  EXPECT_EQ(of(result, "a").rescales, 0);
}

// b holds 3 of 4 until 0 + 10 + 40 = 50, a 1. a trains from 10: 40 units by 50, 360 left of 400. At
// 50 it grows to 4 and, by checkpoint, stands for 30 s: trains from 80 at 4 a second: 90 s: 170.
TEST(SimByHand, MakePlanGrowsIntoWhatComesFree) {
  const std::vector<TraceJob> jobs = {rigid("b", 0, 3, 40), linear("a", 0, 1, 4, 400)};
  const SimResult result = play("1x4:A", jobs, "marginalThroughput");
  EXPECT_EQ(finish_s(result, "b"), 50);
  EXPECT_EQ(finish_s(result, "a"), 170);
  EXPECT_EQ(of(result, "a").rescales, 1);
  // In place: b's GPUs are free at 55; the newcomers prepare until 70, while a trains on: 60 units.
  // Then 2 s of stall, and 340 units at 4 a second: 85 s: 157.
  const SimResult gentle = play("1x4:A", jobs, "marginalThroughput", gentle_costs());
  EXPECT_EQ(finish_s(gentle, "a"), 157);
  // 1 GPU for 55 s, 4 for 102 s and the 5 s until they are free.
  EXPECT_EQ(of(gentle, "a").gpu_ms, 55'000 + 4 * 107'000);
  EXPECT_EQ(of(gentle, "a").training_gpu_ms, 60'000 + 4 * 85'000);
}

// a holds 4 from 0, trains from 10: 40 units a 10 s. At 20 b, which needs 2, comes: a shrinks to 2.
// By checkpoint: b starts at 20 (10 + 50: 80). a has 360 left, stands until 50, then 2 a second;
// at 80 it has 300 left and grows to 4, stands until 110, 75 s: 185.
TEST(SimByHand, MakePlanShrinksForAMinimum) {
  const SimResult result =
      play("1x4:A", {linear("a", 0, 1, 4, 400), rigid("b", 20, 2, 50)}, "marginalThroughput");
  EXPECT_EQ(start_s(result, "b"), 20);
  EXPECT_EQ(finish_s(result, "b"), 80);
  EXPECT_EQ(finish_s(result, "a"), 185);
  EXPECT_EQ(of(result, "a").rescales, 2);
  EXPECT_EQ(of(result, "a").preemptions, 0);
}

// Growth that does not pay: on 1 GPU 1 unit a second, on 2 the same. The policy cannot know before
// it has seen it. b leaves at 0 + 10 + 20 = 30, free at 35; a, with 30 units left of 50 at 30 (20
// trained from 10), grows at 35 to prepare until 50 (10 left), stalls until 52 and ends at 62, not
// at 60.
TEST(SimByHand, AnEndAtTheOldPaceIsVoid) {
  TraceJob a = linear("a", 0, 1, 2, 50);
  a.speed = {};
  a.speed.add("*", {1, 1.0});
  const SimResult result =
      play("1x2:A", {rigid("b", 0, 1, 20), a}, "marginalThroughput", gentle_costs());
  EXPECT_EQ(of(result, "a").rescales, 1);
  EXPECT_EQ(finish_s(result, "a"), 62);
}

// a, b and c have a GPU each from 0. b ends at 30: a, with 580 left of 600, grows to 2 and stands
// until
// 60. c has ended at 50. Without a pause a grows to 3 at 60, stands until 90, and needs 580 / 3 s.
// With a pause of 60 s it trains at 2 a second from 60 to 90, then grows, stands until 120, and has
// 520 left.
TEST(SimByHand, APauseBetweenTwoGrowths) {
  const std::vector<TraceJob> jobs = {linear("a", 0, 1, 3, 600), rigid("b", 0, 1, 20),
                                      rigid("c", 0, 1, 40)};
  SimOptions options{.costs = simple_costs()};
  EXPECT_EQ(finish_s(play("1x3:A", jobs, "marginalThroughput", options), "a"), 283.334);
  options.growth_pause_ms = 60'000;
  EXPECT_EQ(finish_s(play("1x3:A", jobs, "marginalThroughput", options), "a"), 293.334);
}

// Two types. a may use both; 4 of B are free and 2 of A, so place takes B, where it runs at 1 unit
// a second: 10 + 100. b may use A only: 3 a second: 10 + 100 / 3, up to the next millisecond.
TEST(SimByHand, ATypeHasItsOwnSpeed) {
  TraceJob a = rigid("a", 0, 2, 100);
  a.speed = {};
  a.speed.add("A", {2, 3.0});
  a.speed.add("B", {2, 1.0});
  TraceJob b = a;
  b.id = "b";
  b.allow = {"A"};
  for (const char* policy : {"fifo", "marginalThroughput"}) {
    const SimResult result = play("1x2:A,1x4:B", {a, b}, policy);
    EXPECT_EQ(finish_s(result, "a"), 110) << policy;
    EXPECT_EQ(finish_s(result, "b"), 43.334) << policy;
  }
}

// Limits 3 250 and 7 200 GPU-s. a has 10 GPUs from 0: 3 250 GPU-s at 325. b comes at 100, equal in
// queue, and waits behind who runs. At 325 a falls to the second queue and b takes its GPUs: starts
// for 10 s, trains for 50: 385. a trained for 315 s, has 685 left: restarts for 20 s: 1 090.
TEST(SimByHand, TiresiasDemotesAtItsLimit) {
  const SimResult result =
      play("1x10:A", {rigid("a", 0, 10, 1000), rigid("b", 100, 10, 50)}, "tiresias");
  EXPECT_EQ(start_s(result, "b"), 325);
  EXPECT_EQ(finish_s(result, "b"), 385);
  EXPECT_EQ(finish_s(result, "a"), 1090);
  EXPECT_EQ(of(result, "a").preemptions, 1);
}

// A quantum of 60 s. a: 0 to 60, trains 50. b, there since 50 without service: 60 to 120,
// trains 50. Both have 60, the older goes first: a: 120 to 180, of which 20 restart, trains 40 (90
// in all). b has 60 against 120: 180 to 240, trains 40 (90). Equal again: a restarts at 240, trains
// its last 10 until 270. b: 20 of restart, its last 10: 300.
TEST(SimByHand, LasTakesTurnsAndPaysForThem) {
  const SimResult result = play("1x1:A", {rigid("a", 0, 1, 100), rigid("b", 50, 1, 100)}, "las");
  EXPECT_EQ(finish_s(result, "a"), 270);
  EXPECT_EQ(finish_s(result, "b"), 300);
  EXPECT_EQ(of(result, "a").restarts, 2);
  EXPECT_EQ(of(result, "b").restarts, 2);
}

// 12 units on 1 GPU at 1 a second, on 4 at 3: on 2 the time of a unit is half-way in 1/n: with
// x = 1/n, y(1) = 1, y(1/4) = 1/3: y(1/2) = 1/3 + (2/3)(1/3) = 5/9: 1.8 a second.
TEST(SimByHand, SpeedBetweenTwoPoints) {
  SpeedCurve speed;
  speed.add("*", {1, 1.0});
  speed.add("*", {4, 3.0});
  EXPECT_NEAR(speed.at("T4", 2), 1.8, 1e-12);
  EXPECT_EQ(speed.at("T4", 8), 3.0);
  EXPECT_EQ(speed.at("T4", 0), 0);
  speed.add("V", {2, 5.0});
  EXPECT_EQ(speed.at("V", 1), 2.5);
}

// 100 units. Who is not elastic has the trace's plan on 2 GPUs, 0.8 a second: 10 + 125. Who is has
// the best plan there, 1 a second, or 2 a second on 4 GPUs: 10 + 50.
TEST(SimByHand, ExecutionPlans) {
  TraceJob planned = rigid("a", 0, 2, 100);
  planned.request_speed = 0.8;
  planned.max = 4;
  planned.speed.add("*", {4, 2.0});
  EXPECT_EQ(finish_s(play("1x2:A", {planned}, "fifo"), "a"), 135);
  EXPECT_EQ(finish_s(play("1x2:A", {planned}, "marginalThroughput"), "a"), 110);
  EXPECT_EQ(finish_s(play("1x4:A", {planned}, "marginalThroughput"), "a"), 60);
}

// On 2 GPUs a is slower than on 1. Who is not told tries it; who was told stays: 10 + 100.
TEST(SimByHand, ProfiledSpeedsAreKnownAtOnce) {
  TraceJob loses = rigid("a", 0, 1, 100);
  loses.max = 2;
  loses.speed.add("*", {2, 0.5});
  SimOptions options{.costs = simple_costs()};
  EXPECT_GT(finish_s(play("1x2:A", {loses}, "marginalThroughput", options), "a"), 110);
  options.profiled = true;
  const SimResult told = play("1x2:A", {loses}, "marginalThroughput", options);
  EXPECT_EQ(finish_s(told, "a"), 110);
  EXPECT_TRUE(told.profiled);
}

// 260 s to start, 100 s of training, and b beside it, too.
TEST(SimByHand, RubicksCosts) {
  const SimResult result =
      play("1x2:A", {rigid("a", 0, 1, 100), rigid("b", 0, 2, 100)}, "fifo", rubick_costs());
  EXPECT_EQ(finish_s(result, "a"), 360);
  EXPECT_EQ(finish_s(result, "b"), 720);
}

}  // namespace
}  // namespace rubato::sched::sim
