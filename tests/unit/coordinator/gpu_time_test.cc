#include "operator/coordinator/gpu_time.h"

#include "tests/unit/coordinator/fake_pods.h"

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
