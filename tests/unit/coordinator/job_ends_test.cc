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

// Its script ended it: whoever goes on, under this leader or the next, goes no further.
TEST(JobMachineEnds, WhereTheScriptEndedItIsOnRecord) {
  FakePods pods(2);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 100; });
  pods.start_training();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_step(7);
    pods.standing(i).mutable_last()->set_step(7);
    pods.standing(i).mutable_last()->set_outcome(wire::OUTCOME_ENDED);
  }
  pods.clear();
  pods.say(1);
  pods.settle();
  EXPECT_EQ(pods.machine.record().ended_at, 7u);
  EXPECT_EQ(pods.last(0, kForm), nullptr);  // nothing is changed for it
  pods.exit(0, 1, 0);
  pods.settle();
  ASSERT_NE(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.last(1, kForm)->form().stop_steps(), 7u);
  EXPECT_FALSE(pods.last(1, kForm)->form().parked());
  const JobMachine next(Timing{}, pods.wish, pods.written.back(), pods.now);
  EXPECT_EQ(next.view().ended_at, 7u);
}

// All were lost before its last checkpoint, and the scripts that begin again end sooner.
TEST(JobMachineEnds, AScriptThatEndsSoonerTheSecondTimeHasEndedIt) {
  Record record;
  record.generation = 4;
  record.phase = "Stopped";
  record.step = 9;
  record.ended_at = 9;
  FakePods pods(2, record);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 100; });
  pods.connect_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(5);
    pods.make_ready(i);
  }
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().checkpoint_step(), 5u);
  EXPECT_EQ(pods.last(0, kForm)->form().stop_steps(), 9u);
  pods.commit_all();
  for (int i = 0; i < 2; ++i) {
    wire::WorkerStanding& s = pods.standing(i);
    s.mutable_last()->set_seq(s.seq());
    s.mutable_last()->set_step(s.step());
    s.mutable_last()->set_outcome(wire::OUTCOME_ENDED);
    s.set_seq(s.seq() + 1);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().step, 6u);
  EXPECT_EQ(pods.machine.record().ended_at, 6u);
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
  EXPECT_EQ(pods.machine.record().ended_at, 6u);
}

// Its last checkpoint is of its last step: there is no commit any more that would end its start.
TEST(JobMachineEnds, AStartAtTheLastStepFinishes) {
  FakePods pods(2);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 40; });
  pods.connect_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(40);
    pods.make_ready(i);
  }
  pods.settle();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
  EXPECT_EQ(pods.view().step, 40u);
  EXPECT_EQ(pods.view().changes.size(), 1u);
  EXPECT_FALSE(pods.view().awaits_first_step);
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

// While the last checkpoint is written no commit comes at which anybody could join: a newcomer
// would make the members begin anew, and rank 0 write it anew, again and again.
TEST(JobMachineEnds, NobodyJoinsWhenTheLastStepIsCommitted) {
  FakePods pods(3, {}, 2);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 4; });
  pods.start_first(2);
  for (int step = 0; step < 3; ++step) pods.commit_all();
  pods.connect(2);
  pods.make_ready(2);
  pods.after(50ms);
  ASSERT_NE(pods.last(2, kFollow), nullptr);
  pods.standing(2).set_phase(wire::WORKER_FOLLOWING);
  pods.standing(2).set_following(pods.machine.record().generation);
  pods.standing(2).set_has_state(true);
  pods.say(2);
  pods.commit_all();
  ASSERT_EQ(pods.view().step, 4u);
  pods.standing(1).set_phase(wire::WORKER_FINISHED);
  pods.say(1);
  pods.standing(2).set_caught_up(true);
  pods.say(2);
  pods.clear();
  for (int s = 0; s < 60; ++s) {  // rank 0 shows life
    pods.standing(0).set_micro_done(pods.standing(0).micro_done() + 1);
    pods.after(1s);
  }
  EXPECT_FALSE(pods.to_write.has_value());
  EXPECT_TRUE(pods.sent.empty());
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  pods.standing(0).set_phase(wire::WORKER_FINISHED);
  pods.say(0);
  pods.settle();
  EXPECT_EQ(pods.machine.record().phase, "Finished");
}

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

// Rank 0 is lost while it writes the last checkpoint, and the recovery is under way when a
// suspension is taken back: who has finished at another rank has written nothing.
TEST(JobMachineEnds, AStopTakenBackWhileRankZeroIsReplacedIsNotTheEnd) {
  FakePods pods(3);
  pods.start_training();
  for (const int pod : {1, 2}) {
    pods.standing(pod).set_phase(wire::WORKER_FINISHED);
    pods.say(pod);
  }
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.stop_reason = "suspended";
  });
  pods.exit(0, 1, 0);
  pods.settle();
  ASSERT_EQ(pods.machine.record().members.size(), 2u);
  pods.change_wish([](Wish& wish) { wish.stop = false; });
  pods.settle();
  EXPECT_NE(pods.view().end, Phase::kFinished);
  EXPECT_EQ(pods.last(1, kRetire), nullptr);
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
  for (int i = 0; i < 50; ++i) {  // longer than a stop has time for
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

// Half of the grace period is over: what is computed is dropped, and all stop with the last step
// that they have committed.
TEST(JobMachineEnds, AStepThatIsLongerThanTheStopIsAbandoned) {
  FakePods pods(3);
  pods.start_training();
  for (int i = 0; i < 3; ++i) pods.standing(i).set_step_seconds(180);
  pods.clear();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 20s;
  });
  pods.after(9900ms);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pods.count(i, kRequest), 1u);
    EXPECT_EQ(pods.count(i, kAbort), 0u);
  }
  pods.after(200ms);
  pods.settle();
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(pods.last(i, kForm), nullptr);
    EXPECT_TRUE(pods.last(i, kForm)->form().parked()) << "nobody computes any more";
    EXPECT_EQ(pods.last(i, kForm)->form().base_seq(), 1u) << "nothing committed is lost";
    EXPECT_EQ(pods.count(i, kRequest), 2u) << "the Form ended the first one";
    pods.standing(i).set_phase(wire::WORKER_STOPPED);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  EXPECT_EQ(pods.count(0, kRetire), 1u);
}

// The step is committed, and rank 0 writes: nothing is computed that could be abandoned.
TEST(JobMachineEnds, ACheckpointThatTakesItsTimeIsNotAbandoned) {
  FakePods pods(2);
  pods.start_training();
  pods.clear();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 20s;
  });
  pods.standing(1).set_phase(wire::WORKER_STOPPED);
  pods.say(1);
  pods.after(15s);
  EXPECT_EQ(pods.count(0, kAbort), 0u);
  pods.standing(0).set_phase(wire::WORKER_STOPPED);
  pods.say(0);
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineEnds, AStopTakesNoLongerThanItsGracePeriod) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 20s;
  });
  pods.after(10500ms);
  pods.settle();  // they stand still, and the checkpoint takes its time
  pods.after(9s);
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineEnds, NorDoesOneThatMeetsARecovery) {
  FakePods pods(3);
  pods.start_training();
  pods.deaf = 1;  // takes up no Form, which is waited for
  pods.disconnect(2);
  pods.after(400ms);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kRecovering);
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 5s;
  });
  pods.after(4s);
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  pods.after(1500ms);
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineEnds, AStopThatIsTakenBackWhileAllStandStillGoesOn) {
  for (const bool another_leads : {false, true}) {
    FakePods before(3);
    before.start_training();
    before.change_wish([](Wish& wish) {
      wish.stop = true;
      wish.grace = 20s;
    });
    before.after(10500ms);
    before.settle();
    ASSERT_EQ(before.standing(0).phase(), wire::WORKER_PARKED);
    if (!another_leads) {
      before.change_wish([](Wish& wish) { wish.stop = false; });
      before.settle();
      EXPECT_EQ(before.view().phase, Phase::kTraining);
      continue;
    }
    Record record = before.machine.record();
    ++record.leader;
    FakePods pods(3, record);
    pods.standings = before.standings;
    pods.connect_all();
    pods.settle();
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
  }
}

// Below the minimum those who are left stand still. Where the stop is lowered to what they have,
// nothing is missing but the last checkpoint, for which one is enough.
TEST(JobMachineEnds, AParkedJobWhoseLastStepIsCommittedGoesOn) {
  FakePods pods(2);
  pods.start_training();
  pods.exit(1, -1, 9);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kParked);
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.stop_steps = 1; });
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_FALSE(pods.last(0, kForm)->form().parked());
  EXPECT_EQ(pods.last(0, kForm)->form().stop_steps(), 1u);
  EXPECT_EQ(pods.count(0, kForm), 1u);
  pods.standing(0).set_phase(wire::WORKER_FINISHED);
  pods.say(0);
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
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
