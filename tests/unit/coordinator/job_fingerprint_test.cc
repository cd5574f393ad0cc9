// JobMachine: what the members of a job must compute alike, and who decides what that is.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

void make_odd(FakePods& pods, int pod) {
  pods.standing(pod).set_phase(wire::WORKER_READY);
  pods.standing(pod).set_fingerprint("odd");
  pods.say(pod);
}

TEST(JobMachineFingerprint, RefusesAnotherFingerprintAndNamesBothCpus) {
  FakePods pods(3, {}, 2);
  pods.connect_all();
  pods.make_ready(0);
  pods.make_ready(1);
  pods.standing(2).set_phase(wire::WORKER_READY);
  pods.standing(2).set_fingerprint("other");
  pods.standing(2).set_cpu("Xeon");
  pods.say(2);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_TRUE(pods.view().failures.empty());  // it costs the job nothing
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].reason, "FingerprintMismatch");
  EXPECT_EQ(pods.view().refused[0].message,
            "Xeon computes other bits (fingerprint other) than EPYC (fingerprint f00d)");
  EXPECT_EQ(pods.last(2, kFollow), nullptr);
}

// Of two on two nodes the first is believed. Who replaces the other may show that it was wrong.
TEST(JobMachineFingerprint, NodesAreCountedAlsoThoseThatWereRefused) {
  FakePods pods(3, {}, 2);
  pods.change_wish([](Wish& wish) { wish.min_workers = 2; });
  pods.connect(0);
  pods.connect(1);
  make_odd(pods, 0);
  pods.make_ready(1);
  pods.after(1s);
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].pod_uid, "uid-1");
  EXPECT_TRUE(pods.machine.record().fingerprint.empty()) << "one is not enough to begin";
  pods.connect(2);
  pods.make_ready(2);
  pods.after(1s);
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].pod_uid, "uid-0");
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.front().pod, "gpt-1") << "it is taken back";
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  pods.settle();
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
}

// One of those who could begin it may have other data, or compute otherwise: most of them are
// right, whoever spoke first.
TEST(JobMachineFingerprint, WhatMostOfTheFirstMembersComputeIsPinned) {
  FakePods pods(5, {}, 3);
  for (int i = 0; i < 4; ++i) pods.connect(i);
  make_odd(pods, 0);
  pods.after(5s);
  EXPECT_TRUE(pods.machine.record().fingerprint.empty());
  pods.connect(4);  // can compute as the first one does, perhaps: told, and not bound to it
  EXPECT_EQ(pods.last(4, kConfigure)->configure().fingerprint(), "odd");
  pods.make_ready(1);
  pods.make_ready(2);
  pods.after(kJoinSettle + 50ms);
  EXPECT_FALSE(pods.to_write.has_value()) << "two of three are left";
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].pod_uid, "uid-0");
  pods.make_ready(3);
  pods.after(kJoinSettle + 50ms);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 3u);
  pods.settle();
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
  make_odd(pods, 4);
  EXPECT_EQ(pods.view().refused.size(), 2u) << "what is pinned is pinned";
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// The disk with the checkpoints does not answer one of two, which cannot know what others do.
TEST(JobMachineFingerprint, WhoIsNotReadyYetIsToldWhatOthersCompute) {
  FakePods pods(2, {}, 1);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.connect_all();
  pods.make_ready(0);
  pods.after(kJoinSettle + 50ms);
  pods.settle();
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
  EXPECT_EQ(pods.count(1, kConfigure), 1u) << "it may be ready in a moment";
  EXPECT_EQ(pods.last(1, kConfigure)->configure().fingerprint(), "");
  pods.after(kLookDeadline);
  EXPECT_EQ(pods.count(1, kConfigure), 2u);
  EXPECT_EQ(pods.last(1, kConfigure)->configure().fingerprint(), "f00d");
  pods.after(1min);
  EXPECT_EQ(pods.count(1, kConfigure), 2u);
  EXPECT_EQ(pods.count(0, kConfigure), 1u);
}

// Too few are ready: there is no generation whose fingerprint could be pinned.
TEST(JobMachineFingerprint, WhoAStartWaitsForIsToldWhatMostCompute) {
  FakePods pods(2);
  pods.connect_all();
  pods.after(2 * kLookDeadline);
  EXPECT_EQ(pods.count(1, kConfigure), 1u) << "nobody has spoken";
  pods.make_ready(0);
  EXPECT_EQ(pods.count(1, kConfigure), 2u);
  EXPECT_EQ(pods.last(1, kConfigure)->configure().fingerprint(), "f00d");
}

// A store that is restored from before a job's first generation: its checkpoints are on disk, and
// who comes first computes otherwise than they were computed.
TEST(JobMachineFingerprint, AStartThatNeverStandsPinsNothing) {
  FakePods pods(4, {}, 2);
  pods.change_wish([](Wish& wish) { wish.min_workers = 2; });
  for (const int pod : {0, 1}) {
    pods.connect(pod);
    make_odd(pods, pod);
  }
  pods.after(kJoinSettle + 50ms);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->fingerprint, "");
  pods.swap_done();
  for (const int pod : {0, 1}) {
    pods.say(pod, [](wire::WorkerEvent& event) {
      event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_WORKER);
      event.mutable_failure()->set_reason("CheckpointPathTaken");
    });
  }
  for (const int pod : {2, 3}) {
    pods.connect(pod);
    pods.make_ready(pod);
  }
  pods.after(kJoinSettle + 50ms);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
  EXPECT_EQ(pods.view().refused.size(), 2u);
}

// Its leader dies between the last word of the start and the write that says so: the next one takes
// it from those who train.
TEST(JobMachineFingerprint, WhoHoldsAStateOfTheRecordedGenerationPinsIt) {
  FakePods before(3, {}, 2);
  before.connect(0);
  before.connect(1);
  before.make_ready(0);
  before.make_ready(1);
  before.after(kJoinSettle + 50ms);
  ASSERT_TRUE(before.to_write.has_value());
  FakePods pods(3, *before.to_write, 2);
  const std::uint64_t generation = before.to_write->generation;
  for (const int pod : {0, 1}) {
    pods.standing(pod).set_phase(wire::WORKER_TRAINING);
    pods.standing(pod).set_has_state(true);
    pods.standing(pod).set_generation(generation);
    pods.standing(pod).set_fingerprint("f00d");
    pods.connect(pod);
  }
  pods.connect(2);
  make_odd(pods, 2);
  pods.after(5s);
  pods.settle();
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].pod_uid, "uid-2");
}

// Workers say that they are in a generation before they hold a state. All that a leader knows then
// is written without waiting for another change, so that the next one knows it when nobody is left.
TEST(JobMachineFingerprint, IsWrittenOnceAMemberHoldsAState) {
  FakePods before(2);
  before.connect_all();
  before.make_ready(0);
  before.make_ready(1);
  before.after(kJoinSettle + 50ms);
  before.swap_done();
  for (const int pod : {0, 1}) {
    before.standing(pod).set_phase(wire::WORKER_TRAINING);
    before.standing(pod).set_generation(before.machine.record().generation);
    before.say(pod);
  }
  before.after(1s);
  ASSERT_TRUE(before.to_write.has_value());
  EXPECT_EQ(before.to_write->phase, name_of(Phase::kTraining));
  EXPECT_EQ(before.to_write->fingerprint, "");
  for (const int pod : {0, 1}) {
    before.standing(pod).set_has_state(true);
    before.say(pod);
  }
  before.swap_done();
  before.after(1s);
  ASSERT_TRUE(before.to_write.has_value());
  EXPECT_EQ(before.to_write->fingerprint, "f00d");
  before.swap_done();
  before.after(1s);
  EXPECT_FALSE(before.to_write.has_value());

  FakePods pods(3, before.written.back(), 1);
  pods.connect(2);
  make_odd(pods, 2);
  pods.after(1s);
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].pod_uid, "uid-2");
}

}  // namespace
}  // namespace rubato::coordinator
