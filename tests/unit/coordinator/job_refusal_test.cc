// JobMachine: workers that cannot take part, and who may end a job.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

void fail(FakePods& pods, int pod, const std::string& reason, wire::FailureScope scope) {
  pods.say(pod, [&](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason(reason);
    event.mutable_failure()->set_message("cannot open /data/tokens");
    event.mutable_failure()->set_permanent(true);
    event.mutable_failure()->set_scope(scope);
  });
}

TEST(JobMachineRefusal, ANewcomerThatCannotTakePartDisturbsNobody) {
  // A worker of the version before says no scope.
  for (const auto scope : {wire::FAILURE_SCOPE_WORKER, wire::FAILURE_SCOPE_UNSPECIFIED}) {
    FakePods pods(3, {}, 2);
    pods.start_first(2);
    pods.commit_all();
    pods.connect(2);
    pods.clear();
    fail(pods, 2, "DataNotFound", scope);
    pods.settle();
    pods.commit_all();
    pods.after(1s);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
    EXPECT_EQ(pods.view().members.size(), 2u);
    EXPECT_TRUE(pods.sent.empty());
    EXPECT_TRUE(pods.view().failures.empty());
    EXPECT_EQ(pods.view().failure_count, 0u);
    ASSERT_EQ(pods.view().refused.size(), 1u);
    const Refusal& refusal = pods.view().refused[0];
    EXPECT_EQ(refusal.pod_uid, "uid-2");
    EXPECT_EQ(refusal.node, "n2");
    EXPECT_EQ(refusal.reason, "DataNotFound");
    EXPECT_EQ(refusal.message, "cannot open /data/tokens");
    // It is asked nothing more until its pod is taken out.
    pods.connect(2);
    pods.after(1s);
    EXPECT_TRUE(pods.sent.empty());
    pods.change_wish([](Wish& wish) { wish.pods[2].leaving = true; });
    EXPECT_EQ(pods.count(2, kRetire), 1u);
    pods.change_wish([](Wish& wish) { wish.pods.pop_back(); });
    EXPECT_TRUE(pods.view().refused.empty());
  }
}

TEST(JobMachineRefusal, WhatAllMembersMeetAlikeEndsTheJobAndOnlyAMemberMaySaySo) {
  for (const char* reason : {"NonFinite", "LedgerMismatch"}) {
    for (const auto scope : {wire::FAILURE_SCOPE_JOB, wire::FAILURE_SCOPE_UNSPECIFIED}) {
      FakePods pods(3, {}, 2);
      pods.start_first(2);
      pods.commit_all();
      pods.connect(2);
      pods.make_ready(2);
      fail(pods, 2, reason, scope);
      pods.settle();
      EXPECT_EQ(pods.view().phase, Phase::kTraining);
      fail(pods, 1, reason, scope);
      pods.settle();
      EXPECT_EQ(pods.view().phase, Phase::kFailed);
      EXPECT_EQ(pods.view().failure_reason, reason);
    }
  }
}

TEST(JobMachineRefusal, AMemberThatCannotTakePartIsLeftOut) {
  FakePods pods(3);
  pods.start_training();
  fail(pods, 0, "CheckpointFailed", wire::FAILURE_SCOPE_WORKER);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.view().refused.size(), 1u);
  EXPECT_NE(pods.view().changes.back().reason.find("refused: CheckpointFailed"), std::string::npos);
  EXPECT_FALSE(pods.was_restarted(0));
}

// While one that holds the state lives, nothing committed is lost.
TEST(JobMachineRefusal, TheOnlyOneWithTheStateIsNeverLeftOut) {
  FakePods pods(2);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.start_training();
  fail(pods, 0, "CheckpointFailed", wire::FAILURE_SCOPE_WORKER);
  pods.settle();
  pods.commit_all();
  ASSERT_EQ(pods.machine.record().members.size(), 1u);
  fail(pods, 1, "CheckpointFailed", wire::FAILURE_SCOPE_WORKER);
  pods.settle();
  EXPECT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  // The one that was left out still has it when the other dies.
  pods.clear();
  pods.exit(1, -1, 9);
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_RECOVER);
}

// The last step is committed, and one after the other cannot write the last checkpoint. The minimum
// keeps none of them from trying; then the job fails for what the last one says.
TEST(JobMachineRefusal, TheLastCheckpointIsTriedByOneAfterTheOther) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) {
    wish.min_workers = 2;
    wish.stop_steps = 4;
  });
  pods.start_training();
  for (int step = 1; step < 4; ++step) pods.commit_all();
  for (int pod = 0; pod < 2; ++pod) {
    fail(pods, pod, "CheckpointFailed", wire::FAILURE_SCOPE_WORKER);
    pods.settle();
    EXPECT_EQ(pods.view().phase, Phase::kTraining) << pods.view().reason;
    ASSERT_EQ(pods.machine.record().members.size(), 2u - static_cast<std::size_t>(pod));
    EXPECT_EQ(pods.machine.record().members.front().pod, "gpt-" + std::to_string(pod + 1));
    EXPECT_FALSE(pods.last(pod + 1, kForm)->form().parked());
    EXPECT_EQ(pods.view().refused.size(), 1u + static_cast<std::size_t>(pod));
  }
  fail(pods, 2, "CheckpointFailed", wire::FAILURE_SCOPE_JOB);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "CheckpointFailed");
  EXPECT_EQ(pods.view().failure_message, "cannot open /data/tokens");
}

// Before that step the minimum holds: those who are left keep the state and wait for others.
TEST(JobMachineRefusal, BelowTheMinimumThoseWhoAreLeftWait) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) {
    wish.min_workers = 3;
    wish.stop_steps = 40;
  });
  pods.start_training();
  fail(pods, 0, "DataDamaged", wire::FAILURE_SCOPE_WORKER);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kParked);
  EXPECT_TRUE(pods.last(1, kForm)->form().parked());
}

TEST(JobMachineRefusal, AJobWhoseWorkersAreAllRefusedWaitsForOthers) {
  FakePods pods(2);
  pods.connect_all();
  for (int i = 0; i < 2; ++i) fail(pods, i, "DataNotFound", wire::FAILURE_SCOPE_WORKER);
  pods.after(11min);  // beyond start_deadline
  EXPECT_EQ(pods.view().phase, Phase::kWaiting);
  EXPECT_EQ(pods.view().refused.size(), 2u);
  EXPECT_FALSE(pods.was_restarted(0));
}

// What is damaged or missing for one may be whole for the other.
TEST(JobMachineRefusal, WhoCannotStartIsLeftOutOfTheStart) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) { wish.start_workers = 2; });
  pods.connect_all();
  for (int i = 0; i < 3; ++i) pods.make_ready(i);
  pods.swap_done();
  pods.clear();
  fail(pods, 1, "StartFailed", wire::FAILURE_SCOPE_WORKER);
  for (int i = 0; i < 3; ++i) {
    pods.after(1s);
    pods.settle();
  }
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.view().refused.size(), 1u);
}

}  // namespace
}  // namespace rubato::coordinator
