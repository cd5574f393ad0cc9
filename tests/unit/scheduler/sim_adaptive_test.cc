// Jobs whose batch adapts: what was measured of their applications, how they train from round to
// round, and what a policy is told of it. By hand.
#include "scheduler/sim/adaptive_run.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <cmath>

namespace rubato::sched::sim {
namespace {

// A pass of m samples on one GPU takes 0.1 + m / 160 s, and 0.1 s more to reduce over two or more:
// 0.2 s for 16, 0.3 s for 32. Gradients have no noise: a larger batch brings nothing.
Application without_noise(std::vector<double> progress) {
  Application of{.name = "plain",
                 .limits = {.first_batch = 32, .max_batch = 64, .min_local = 16, .max_local = 32}};
  for (const auto& [placement, sync_s] :
       std::map<GpusByNode, double>{{{1}, 0}, {{2}, 0.1}, {{1, 1}, 0.1}})
    for (const double m : {16.0, 32.0})
      of.placements[placement].push_back({m, 0.1 + m / 160 + sync_s, sync_s});
  for (const std::int64_t batch : {32, 64})
    for (const double until : progress) of.epochs[batch].push_back({until, {1, 0}});
  return of;
}

TraceJob training(const std::string& id, TimeMs submit_s, Gpus request,
                  const std::shared_ptr<const Application>& application) {
  TraceJob job = rigid(id, submit_s, request, application->progress_after(1));
  job.training = AdaptiveTraining{
      .application = application, .batch = 64, .fixed_max = request, .fixed_speed = job.speed};
  return job;
}

constexpr TimeMs kRoundMs = 60'000;
SimOptions lockstep() {
  return {.costs = simple_costs(), .round_ms = kRoundMs, .in_lockstep = true};
}

TEST(SimAdaptive, NodesInARingAreAlike) {
  EXPECT_EQ(normal_form({4, 1, 2}), (GpusByNode{1, 2, 4}));
  EXPECT_EQ(normal_form({2, 1, 4}), (GpusByNode{1, 4, 2}));
  EXPECT_EQ(packed(10, 4), (GpusByNode{4, 4, 2}));
}

TEST(SimAdaptive, BatchesAreSplitIntoAsFewPassesAsFit) {
  const BatchLimits limits{.first_batch = 32, .max_batch = 100, .min_local = 16, .max_local = 32};
  const auto split = [&](double batch, Gpus gpus) {
    const BatchSplit one = split_of(batch, gpus, limits);
    return std::pair(one.local_batch, one.accumulated);
  };
  EXPECT_EQ(split(64, 2), std::pair(32.0, std::int64_t{0}));
  EXPECT_EQ(split(65, 2), std::pair(17.0, std::int64_t{1}));
  EXPECT_EQ(split(32, 1), std::pair(32.0, std::int64_t{0}));
  EXPECT_EQ(split(33, 1), std::pair(17.0, std::int64_t{1}));   // its noise needs two
  EXPECT_EQ(split(100, 3), std::pair(16.0, std::int64_t{1}));  // 17 would be more than 100
}

TEST(SimAdaptive, BetweenTwoBatchesTimesAndNoiseAreLinear) {
  Application of = without_noise({100});
  StepTimes steps(of);
  EXPECT_NEAR(steps.at({2}, 24).step_s, 0.35, 1e-12);
  EXPECT_NEAR(steps.at({2}, 24).sync_s, 0.1, 1e-12);
  of.epochs[32][0].noise = {2, 10};
  of.epochs[64][0].noise = {4, 30};
  EXPECT_NEAR(of.noise(40, 0).square, 2.5, 1e-12);
  EXPECT_NEAR(of.noise(40, 0).variance, 15, 1e-12);
  EXPECT_EQ(of.noise(64, 0).variance, 30);
}

// What is linear in (nodes, GPUs, batch) is found exactly, by whichever simplex; what is not, from
// the nearest corners; and outside of all that was measured the nearest.
TEST(SimAdaptive, PlacementsThatWereNotMeasuredLieBetweenThoseThatWere) {
  Application of = without_noise({100});
  for (const std::int64_t nodes : {2, 4, 8})
    for (const Gpus gpus : {8, 16, 32})
      for (const double batch : {16.0, 24.0, 32.0})
        of.spreads.push_back({{nodes, gpus},
                              {batch,
                               1 + 0.5 * static_cast<double>(nodes) +
                                   0.25 * static_cast<double>(gpus) + 0.125 * batch,
                               0.25 * static_cast<double>(gpus)}});
  StepTimes steps(of);
  EXPECT_NEAR(steps.at({4, 4, 4, 4, 4}, 17).step_s, 1 + 2.5 + 5 + 17.0 / 8, 1e-6);
  EXPECT_NEAR(steps.at({4, 4, 4, 4, 4}, 17).sync_s, 5, 1e-6);
  EXPECT_NEAR(steps.at({4, 4, 4, 4, 4}, 160).step_s, 1 + 2 + 4 + 4, 1e-6);
  for (SpreadStep& one : of.spreads)
    one.step.step_s = static_cast<double>(one.spread.gpus * one.spread.gpus);
  StepTimes squares(of);
  EXPECT_NEAR(squares.at({3, 3, 3, 3}, 16).step_s, (64 + 256) / 2.0, 1e-6);
}

// A step of 32 on one GPU takes 0.3 s: 100 steps 30 s, and an epoch whole seconds.
TEST(SimAdaptive, EpochsTakeWholeSeconds) {
  const Application of = without_noise({100, 201});
  StepTimes steps(of);
  AdaptiveRun run(steps, 32);
  EXPECT_EQ(run.train({1}, 15), std::nullopt);
  EXPECT_NEAR(run.progress(), 50, 1e-9);
  EXPECT_EQ(run.train({1}, 60), 15 + 30);  // 30.3 s
  EXPECT_EQ(run.progress(), 201);
}

// Where noise is all there is a step of 64 is worth two of 32: adapting pays, and a policy hears of
// twice as many GPUs as were tried.
TEST(SimAdaptive, TheBatchFollowsWhatWasObserved) {
  Application of = without_noise({100, 1e6});
  for (auto& [batch, rows] : of.epochs)
    for (MeasuredEpoch& row : rows) row.noise = {0, 1};
  StepTimes steps(of);
  AdaptiveRun run(steps, 0);
  EXPECT_TRUE(run.goodput("T4", 4, 64).empty());
  run.train({2}, 30);
  EXPECT_NEAR(run.progress(), 100, 1e-9);  // 16 each in 0.3 s
  const auto points = run.goodput("T4", 4, 64);
  ASSERT_EQ(points.size(), 7u);  // 1; 2, 3 and 4 on one node and on several
  EXPECT_EQ(points[0].gpus, 1);
  EXPECT_EQ(points[6].gpus, 4);
  EXPECT_EQ(points[6].nodes, 2);
  EXPECT_EQ(run.goodput("T4", 4, 3).size(), 5u);
  run.train({2}, 40);
  EXPECT_NEAR(run.progress(), 100 + 40 / 0.4 * 2, 1e-9);  // 32 each in 0.4 s
  AdaptiveRun fixed(steps, 32);
  fixed.train({2}, 30);
  EXPECT_EQ(fixed.goodput("T4", 4, 64).size(), 3u);  // 16 at least on each: at most 2 GPUs
}

// Comes at 10 s, is seen at 60 s, starts for 10 s, takes 0.4 s for a step of 64 on two GPUs.
// Without noise that is worth a step of 32: 20 s. The other one waits for a round.
TEST(SimAdaptive, RoundsComeAtWholeMinutesOnly) {
  const auto application = std::make_shared<const Application>(without_noise({50}));
  const SimResult result =
      play("1x2:T4", {training("a", 10, 2, application), training("b", 11, 2, application)}, "fifo",
           lockstep());
  EXPECT_EQ(result.jobs[0].start_ms, 60'000);
  EXPECT_EQ(result.jobs[0].finish_ms, 90'000);
  EXPECT_EQ(result.jobs[1].start_ms, 120'000);
  EXPECT_EQ(result.jobs[1].finish_ms, 150'000);
  EXPECT_EQ(result.rounds, 2);
}

// A start that ends at a round trains from there on, once.
TEST(SimAdaptive, AStartMayTakeAWholeRound) {
  const auto application = std::make_shared<const Application>(without_noise({500}));
  SimOptions options = lockstep();
  options.costs.start_ms = kRoundMs;
  const SimResult result = play("1x2:T4", {training("a", 0, 2, application)}, "fifo", options);
  EXPECT_EQ(result.jobs[0].finish_ms, 60'000 + 200'000);
  EXPECT_EQ(result.jobs[0].training_gpu_ms, 2 * 200'000);
}

TEST(SimAdaptive, NeedsLockstep) {
  const auto application = std::make_shared<const Application>(without_noise({50}));
  const auto scheduler = scheduler_named("fifo");
  const auto result = simulate(parse_cluster("1x2:T4").value(), {training("a", 0, 2, application)},
                               **scheduler, {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().what().find("needs lockstep"), std::string::npos);
}

// The policy's table is of the job itself: nobody else has it, and it is empty before it ran.
TEST(SimAdaptive, PoliciesThatAskAreToldOfGoodput) {
  const auto application = std::make_shared<const Application>(without_noise({1e4}));
  TraceJob job = training("a", 0, 1, application);
  job.max = 2;
  SimOptions options = lockstep();
  std::vector<Gpus> held;
  options.on_plan = [&](TimeMs, const Plan& plan) {
    for (const Action& action : plan.actions) held.push_back(std::ssize(action.add));
  };
  play("1x4:T4", {job}, "pollux", options);
  EXPECT_EQ(held, (std::vector<Gpus>{1, 1}));  // starts on one, is tried on two
}

}  // namespace
}  // namespace rubato::sched::sim
