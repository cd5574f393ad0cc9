#include "operator/coordinator/gpu_time.h"

#include "tests/unit/coordinator/fake_pods.h"

#include <random>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr MonoTime kStart{std::chrono::hours(1)};

TEST(GpuTime, BooksTheTimeUntilTheNextPass) {
  GpuTime time(kStart);
  time.set(3, 0, 0, GpuUse::kQueue);
  time.advance(kStart + 2s);
  time.set(4, 2, 1, GpuUse::kUseful);
  time.advance(kStart + 5s);
  EXPECT_EQ(time.total(), (GpuSeconds{.useful = 6, .queue = 6, .rescale = 3, .failure = 3}));
  time.move(GpuUse::kUseful, GpuUse::kFailure, 100);  // no more than there is
  EXPECT_EQ(time.total(), (GpuSeconds{.queue = 6, .rescale = 3, .failure = 9}));
  EXPECT_EQ(time.total().held(), 18);
}

TEST(GpuTime, WaitingForTheSlowestIsLost) {
  GpuTime time(kStart);
  time.set(4, 4, 0, GpuUse::kUseful, 0.25);
  time.advance(kStart + 4s);
  EXPECT_EQ(time.total(), (GpuSeconds{.useful = 12, .straggling = 4}));
  time.set(4, 4, 0, GpuUse::kFailure, 0.25);  // nobody waits for a step
  time.advance(kStart + 5s);
  EXPECT_EQ(time.total(), (GpuSeconds{.useful = 12, .failure = 4, .straggling = 4}));
}

TEST(GpuTime, TheOpenStepIsLostOnceWithWhatItWaited) {
  GpuTime time(kStart);
  time.set(4, 4, 0, GpuUse::kUseful, 0.25);
  time.advance(kStart + 4s);
  time.commit();
  time.advance(kStart + 5s);
  time.lose_open_step();
  EXPECT_EQ(time.total(), (GpuSeconds{.useful = 12, .failure = 4, .straggling = 4}));
  time.lose_open_step();
  EXPECT_EQ(time.total(), (GpuSeconds{.useful = 12, .failure = 4, .straggling = 4}));
}

// A step takes 0.1 s; `rounds` of them, in step with the clock.
void train(FakePods& pods, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    pods.after(100ms);
    pods.commit_all();
    pods.settle();
  }
}

TEST(GpuTimeOfAJob, StartsInTheQueueThenTrains) {
  FakePods pods(2);
  pods.connect_all();
  pods.after(1s);
  for (int i = 0; i < 2; ++i) pods.make_ready(i);
  pods.settle();
  train(pods, 50);
  const GpuSeconds& spent = pods.view().gpu_seconds;
  EXPECT_NEAR(spent.queue, 2.0, 0.05);
  EXPECT_NEAR(spent.useful, 10.0, 0.05);
  EXPECT_NEAR(spent.lost(), spent.queue, 1e-9);
}

TEST(GpuTimeOfAJob, ALossCostsFromTheLastCommitToTheFirstLessOneStep) {
  FakePods pods(3);
  pods.start_training();
  train(pods, 10);
  const GpuSeconds before = pods.view().gpu_seconds;
  pods.connected[2] = false;  // silent
  pods.after(2600ms);
  pods.settle();
  train(pods, 10);
  const GpuSeconds after = pods.view().gpu_seconds;
  // Three GPUs for 2.5 s; the third is still held by its pod, and joins nothing.
  EXPECT_NEAR(after.failure - before.failure, 3 * 2.6 + 1.0, 0.5);
  EXPECT_NEAR(after.useful - before.useful, 2 * 1.0, 0.3);
  EXPECT_NEAR(after.held() - before.held(), 3 * 3.6, 0.01);
}

// Recoveries of any number and kind between two steps, links that break, deaths and newcomers: each
// GPU second is counted once, and what is lost was not committed.
TEST(GpuTimeOfAJob, EachSecondIsCountedOnceInAnyRowOfRecoveries) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    std::minstd_rand chance(seed);
    FakePods pods(3);
    pods.start_training();
    const MonoTime since = pods.view().since;
    double committed = pods.view().gpu_seconds.useful;
    std::uint64_t recomputed = 0;
    for (int i = 0; i < 60; ++i) {
      switch (chance() % 4) {
        case 0: {
          const std::uint64_t seq = pods.view().seq;
          train(pods, 1 + static_cast<int>(chance() % 3));
          if (pods.view().seq > seq) committed = pods.view().gpu_seconds.useful;
          break;
        }
        case 1:
          pods.break_link(0, 1);
          break;
        case 2:
          pods.begin_anew(static_cast<int>(1 + chance() % 2));
          break;
        default:
          break;
      }
      pods.after(std::chrono::milliseconds(chance() % 1000));
      if (chance() % 3 != 0) pods.settle();
      const GpuSeconds& spent = pods.view().gpu_seconds;
      if (pods.view().recomputed_steps > recomputed) committed = spent.useful;  // a return
      recomputed = pods.view().recomputed_steps;
      EXPECT_NEAR(spent.held(), 3 * std::chrono::duration<double>(pods.now - since).count(), 1e-6);
      EXPECT_GE(spent.useful, committed - 1e-6) << "seed " << seed << ", event " << i;
      EXPECT_GE(spent.lost(), 0);
    }
    double stalls = 0;
    for (const Change& change : pods.view().changes) stalls += change.stall_seconds;
    EXPECT_LE(stalls, std::chrono::duration<double>(pods.now - since).count()) << "seed " << seed;
  }
}

// What a recovery costs is the time from the last step to the next, however many it takes.
TEST(GpuTimeOfAJob, RecoveriesInARowShareTheirStall) {
  FakePods pods(2);
  pods.start_training();
  train(pods, 50);
  const GpuSeconds before = pods.view().gpu_seconds;
  const std::size_t changes = pods.view().changes.size();
  for (int i = 0; i < 6; ++i) {
    pods.say(0, [](wire::WorkerEvent& event) {
      event.mutable_failure()->set_reason("StepFailed");
      event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
    });
    pods.after(200ms * (1 << i));
    pods.settle();
  }
  train(pods, 4);
  const GpuSeconds& after = pods.view().gpu_seconds;
  EXPECT_NEAR(after.failure - before.failure, 2 * 12.6, 0.5);
  EXPECT_NEAR(after.useful - before.useful, 2 * 0.4, 0.5);
  double stalls = 0;
  for (std::size_t i = changes; i < pods.view().changes.size(); ++i)
    stalls += pods.view().changes[i].stall_seconds;
  EXPECT_GE(pods.view().changes.size(), changes + 5);
  EXPECT_NEAR(stalls, 12.6, 0.3);
}

TEST(GpuTimeOfAJob, WhatTheLastCheckpointTakesIsItsOwn) {
  FakePods pods(2);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 6; });
  pods.start_training();
  train(pods, 5);
  const GpuSeconds before = pods.view().gpu_seconds;
  pods.after(3s);  // rank 0 writes
  EXPECT_NEAR(pods.view().gpu_seconds.checkpoint, 6.0, 0.1);
  EXPECT_NEAR(pods.view().gpu_seconds.useful, before.useful, 0.1);
}

TEST(GpuTimeOfAJob, AStopIsForItsCheckpoint) {
  FakePods pods(2);
  pods.start_training();
  train(pods, 5);
  const GpuSeconds before = pods.view().gpu_seconds;
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.after(3s);
  EXPECT_NEAR(pods.view().gpu_seconds.checkpoint, 6.0, 0.1);
  EXPECT_NEAR(pods.view().gpu_seconds.useful, before.useful, 0.1);
}

TEST(Sharing, ANewcomerOnAnotherNodeTellsWhetherCheckpointsAreShared) {
  for (const bool shared : {true, false}) {
    FakePods pods(3, {}, 2);
    pods.start_first(2);
    pods.commit_all();
    pods.standing(0).set_has_checkpoint(true);
    pods.standing(0).set_checkpoint_step(1);
    pods.say(0);
    EXPECT_FALSE(pods.view().checkpoint_shared.has_value());
    pods.connect(2);
    pods.standing(2).set_has_checkpoint(shared);
    pods.standing(2).set_checkpoint_step(shared ? 1 : 0);
    pods.make_ready(2);
    EXPECT_EQ(pods.view().checkpoint_shared, shared);
    EXPECT_EQ(pods.view().checkpoint_unshared_by.find("gpt-2") != std::string::npos, !shared);
  }
}

// A new leader does not count again what it finds.
TEST(SkippedCheckpoints, AreCountedOnce) {
  FakePods pods(2);
  pods.standing(0).set_checkpoints_skipped(3);
  pods.start_training();
  EXPECT_EQ(pods.checkpoints_skipped, 0u);
  pods.standing(0).set_checkpoints_skipped(5);
  pods.beat();
  pods.beat();
  EXPECT_EQ(pods.checkpoints_skipped, 2u);
}

TEST(Validation, TheNewestLossIsShown) {
  FakePods pods(2);
  pods.start_training();
  pods.standing(1).set_validation_step(20);
  pods.standing(1).set_validation_loss(2.5);
  pods.say(1);
  EXPECT_EQ(pods.view().validation_step, 20u);
  EXPECT_EQ(pods.view().validation_loss, 2.5);
}

// One of four computes for 80 ms of each 100, the others for 40.
TEST(GpuTimeOfAJob, WhatTheOthersWaitForTheSlowestIsStraggling) {
  FakePods pods(4);
  pods.start_training();
  const GpuSeconds before = pods.view().gpu_seconds;
  for (int pod = 0; pod < 4; ++pod) pods.standing(pod).set_compute_seconds(pod == 2 ? 0.08 : 0.04);
  train(pods, 100);
  const GpuSeconds after = pods.view().gpu_seconds;
  EXPECT_NEAR(after.straggling - before.straggling, 40 * 0.3, 0.3);
  EXPECT_NEAR(after.useful - before.useful, 40 * 0.7, 0.3);
  pods.standing(1).set_compute_seconds(0);  // a worker of a build before
  train(pods, 10);
  EXPECT_NEAR(pods.view().gpu_seconds.straggling, after.straggling, 0.2);
}

}  // namespace
}  // namespace rubato::coordinator
