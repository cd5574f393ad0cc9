// JobMachine: how a job ends.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

TEST(JobMachineEnds, FinishRetiresAllAndIsWritten) {
  FakePods pods(2);
  pods.start_training();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.settle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kRetire), 1u);
    pods.exit(i, 0, 0);
  }
  EXPECT_EQ(pods.view().phase, Phase::kFinished);
  EXPECT_EQ(pods.machine.record().phase, "Finished");
}

TEST(JobMachineEnds, FinishWaitsForRankZeroThatWritesTheLastCheckpoint) {
  FakePods pods(2);
  pods.start_training();
  pods.standing(1).set_phase(wire::WORKER_FINISHED);
  pods.say(1);
  pods.after(5s);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pods.last(i, kRetire), nullptr);
  pods.standing(0).set_phase(wire::WORKER_FINISHED);
  pods.say(0);
  for (int i = 0; i < 2; ++i) EXPECT_NE(pods.last(i, kRetire), nullptr);
}

// Another rank 0 writes it then, and the job is never called finished without it.
TEST(JobMachineEnds, ARankZeroThatHangsBeforeTheLastCheckpointIsRecoveredFrom) {
  FakePods pods(2);
  pods.start_training();
  pods.standing(0).set_phase_name("finish");
  pods.say(0);
  pods.standing(1).set_phase(wire::WORKER_FINISHED);
  pods.standing(1).set_phase_name("finished");
  pods.say(1);
  pods.after(Timing{}.first_step);
  EXPECT_EQ(pods.last(1, kRetire), nullptr);
  EXPECT_NE(pods.last(1, kAbort), nullptr);  // a recovery, with who answers
}

TEST(JobMachineEnds, StopAsksForACheckpointAndRetiresWhoHasStopped) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.stop_reason = "suspended";
  });
  EXPECT_EQ(pods.view().phase, Phase::kStopping);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pods.count(i, kRequest), 1u);
    EXPECT_TRUE(pods.last(i, kRequest)->request().checkpoint());
    pods.standing(i).set_phase(wire::WORKER_STOPPED);
    pods.say(i);
  }
  pods.settle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kRetire), 1u);
    pods.exit(i, 0, 0);
  }
  EXPECT_EQ(pods.view().phase, Phase::kStopped);
}

// Asks all to stop, and takes it back while some have stopped and others not.
TEST(JobMachineEnds, AStopThatIsTakenBackCostsOneGenerationAndNoMore) {
  FakePods pods(3);
  pods.start_training();
  const std::uint64_t before = pods.machine.record().generation;
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.obey_requests();
  pods.standing(0).set_phase(wire::WORKER_STOPPED);
  pods.say(0);
  EXPECT_TRUE(pods.view().stop_since.has_value());
  pods.change_wish([](Wish& wish) { wish.stop = false; });
  EXPECT_FALSE(pods.view().stop_since.has_value());
  for (int round = 0; round < 12; ++round) {
    pods.settle();
    pods.commit_all();
  }
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().generation, before + 1);
  EXPECT_EQ(pods.view().changes.size(), 2u);  // the start, and this
  EXPECT_EQ(pods.view().changes.back().reason, "resumed before all had stopped");
}

// What a new leader finds when the old one asked for a stop and died, and the job was resumed.
TEST(JobMachineEnds, AStopOfAnOldLeaderEndsWithOneGeneration) {
  FakePods before(3);
  before.start_training();
  before.change_wish([](Wish& wish) { wish.stop = true; });
  before.obey_requests();
  Record record = before.machine.record();
  ++record.leader;
  FakePods pods(3, record);
  pods.standings = before.standings;
  pods.wants_stop = before.wants_stop;
  pods.connect_all();
  for (int round = 0; round < 12; ++round) {
    pods.settle();
    pods.commit_all();
  }
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().generation, record.generation + 1);
}

TEST(JobMachineEnds, AStopAfterOneThatWasTakenBackIsAskedForAnew) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.change_wish([](Wish& wish) { wish.stop = false; });
  for (int i = 0; i < 50; ++i) {  // longer than kStopDeadline
    pods.settle();
    pods.commit_all();
    pods.after(5s);
  }
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  EXPECT_EQ(pods.view().phase, Phase::kStopping);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kRequest), 1u);
    EXPECT_EQ(pods.count(i, kRetire), 0u);  // its time begins now, not with the first
  }
}

TEST(JobMachineEnds, AFinishedStopCannotBeTakenBack) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.obey_requests();
  pods.commit_all();
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  pods.change_wish([](Wish& wish) { wish.stop = false; });
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  EXPECT_EQ(pods.count(0, kRetire), 1u);
}

TEST(JobMachineEnds, StopBeforeTheStart) {
  FakePods pods(2);
  pods.connect(0);
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  EXPECT_NE(pods.last(0, kRetire), nullptr);
  pods.exit(0, 0, 0);
  EXPECT_EQ(pods.view().phase, Phase::kStopped);
}

TEST(JobMachineEnds, APermanentFailureFailsTheJob) {
  FakePods pods(2);
  pods.start_training();
  pods.say(1, [](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("NonFinite");
    event.mutable_failure()->set_message("wte at step 7");
    event.mutable_failure()->set_permanent(true);
  });
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "NonFinite");
  EXPECT_NE(pods.last(0, kRetire), nullptr);
}

}  // namespace
}  // namespace rubato::coordinator
