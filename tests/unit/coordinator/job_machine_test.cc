// JobMachine: starts, a new leader, stuck workers. Fingerprints: job_fingerprint_test.cc,
// recoveries: job_recover_test.cc, changes: job_change_test.cc, ends: job_ends_test.cc.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// ---- Start
// ---------------------------------------------------------------------------------------

TEST(JobMachineStart, ConfiguresAndWaitsForEnoughReadyWorkers) {
  FakePods pods(3);
  pods.connect_all();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.count(i, kConfigure), 1u);
  pods.make_ready(0);
  pods.make_ready(1);
  pods.after(2s);
  EXPECT_FALSE(pods.to_write.has_value());
  EXPECT_EQ(pods.view().phase, Phase::kWaiting);
  pods.make_ready(2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 3u);
  EXPECT_EQ(pods.last(0, kForm), nullptr);  // the durable decision first
  pods.swap_done();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_START);
  EXPECT_FALSE(pods.last(0, kForm)->form().from_checkpoint());
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().phase, "Training");
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
}

TEST(JobMachineStart, StartsWithFewerThanAllAfterASettle) {
  FakePods pods(3, {}, 2);
  pods.connect_all();
  pods.make_ready(0);
  pods.make_ready(1);
  EXPECT_FALSE(pods.to_write.has_value());
  pods.after(kJoinSettle + 50ms);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
}

TEST(JobMachineStart, TakesTheNewestCheckpointAndLeavesOutWhoCannotReadIt) {
  FakePods pods(3);
  pods.connect_all();
  for (int i = 0; i < 3; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(i == 1 ? 50 : 100);
    pods.make_ready(i);
  }
  pods.settle();
  const auto& form = pods.last(0, kForm)->form();
  EXPECT_TRUE(form.from_checkpoint());
  EXPECT_EQ(form.checkpoint_step(), 100u);
  EXPECT_EQ(form.members_size(), 2);
  pods.after(50ms);
  EXPECT_NE(pods.last(1, kFollow), nullptr);  // it joins by following one who can
}

// What the members begin with is no step that they have committed.
TEST(JobMachineStart, FromACheckpointIsNoStep) {
  FakePods pods(2);
  pods.connect_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(40);
    pods.standing(i).set_tokens(4000);
    pods.make_ready(i);
  }
  pods.settle();
  pods.after(3s);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().step, 40u);
  EXPECT_EQ(pods.view().tokens, 4000u);
  EXPECT_TRUE(pods.view().awaits_first_step);
  EXPECT_TRUE(pods.view().changes.empty());
  pods.commit_all();
  EXPECT_EQ(pods.view().step, 41u);
  EXPECT_FALSE(pods.view().awaits_first_step);
  ASSERT_EQ(pods.view().changes.size(), 1u);
  EXPECT_EQ(pods.view().changes.back().at_step, 40u);
  EXPECT_GE(pods.view().changes.back().first_step_seconds, 3.0);
  EXPECT_LE(pods.view().changes.back().formed_at, pods.now - 3s);
}

// ---- A new leader
// ------------------------------------------------------------------------------------

Record record_of(FakePods& pods) {
  Record record = pods.machine.record();
  ++record.leader;
  return record;
}

// Three pods that train, under a new leader that none of them has found yet.
FakePods led_anew() {
  FakePods before(3);
  before.start_training();
  FakePods pods(3, record_of(before));
  pods.standings = before.standings;
  return pods;
}

TEST(JobMachineLeader, FindsTheJobTrainingAndDisturbsNobody) {
  FakePods pods = led_anew();
  pods.connect(0);
  pods.after(1s);
  pods.connect(1);
  pods.connect(2);
  pods.after(3s);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.last(i, kAbort), nullptr);
}

TEST(JobMachineLeader, CallsNobodyDeadBeforeTwoSilences) {
  FakePods pods = led_anew();
  pods.connect(0);
  pods.connect(1);
  pods.after(4900ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  EXPECT_TRUE(pods.view().failures.empty());
  pods.after(200ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
  ASSERT_EQ(pods.view().failures.size(), 1u);  // that the last leader may have seen, or nobody
  EXPECT_EQ(pods.view().failures[0].reason, "AgentLost");
  EXPECT_EQ(pods.view().failures[0].pod_uid, "uid-2");
  EXPECT_TRUE(pods.view().failures[0].infrastructure);
}

// Thousands dial at once, and a step is long: while members still come, nobody is called dead.
TEST(JobMachineLeader, WaitsWhileMembersStillComeBack) {
  FakePods pods = led_anew();
  for (int pod = 0; pod < 3; ++pod) {
    pods.connect(pod);
    pods.after(4s);
  }
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_TRUE(pods.view().failures.empty());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.last(i, kAbort), nullptr);
}

// Its agents are behind those of other jobs.
TEST(JobMachineLeader, WaitsWhileAgentsOfOtherJobsCrowdIn) {
  FakePods pods = led_anew();
  pods.connect(0);
  for (int second = 0; second < 12; ++second) {
    pods.machine.crowded(pods.now);
    pods.after(1s);
  }
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(4900ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);  // nobody else comes
}

// A pass for each arrival of thousands would take the time in which the others come.
TEST(JobMachineLeader, PassesAreFewerWhileAgentsCome) {
  FakePods pods = led_anew();
  const auto waits = [&] {
    pods.connect(0);  // and a pass
    pods.asleep = true;
    pods.connect(0);  // news
    pods.asleep = false;
    const Duration pace = pods.machine.next_pass() - pods.now;
    EXPECT_LE(pace, pods.machine.quiet_pace());
    return pace == pods.machine.quiet_pace();
  };
  EXPECT_TRUE(waits());  // for the members
  pods.connect_all();
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_FALSE(waits());
  pods.machine.crowded(pods.now);
  EXPECT_TRUE(waits());
  pods.after(1100ms);
  EXPECT_FALSE(waits());
  pods.exit(2, -1, 11);
  pods.machine.crowded(pods.now);
  EXPECT_FALSE(waits());  // a recovery is under way
}

// The worker is busy with the Follow of the last leader, and would take up another when that is
// over.
TEST(JobMachineLeader, LetsANewcomerFollowOn) {
  for (const bool caught_up : {false, true}) {
    FakePods before(3, {}, 2);
    before.start_first(2);
    before.commit_all();
    before.connect(2);
    before.make_ready(2);
    before.standing(2).set_phase(wire::WORKER_FOLLOWING);
    before.standing(2).set_following(before.machine.record().generation);
    before.standing(2).set_has_state(true);
    before.standing(2).set_caught_up(caught_up);
    FakePods pods(3, record_of(before), 2);
    pods.standings = before.standings;
    for (int i = 0; i < 3; ++i) pods.connect(i);
    pods.settle();
    EXPECT_EQ(pods.last(2, kFollow), nullptr);
    if (!caught_up) {
      EXPECT_EQ(pods.machine.record().members.size(), 2u);
      pods.standing(2).set_caught_up(true);
      pods.say(2);
      pods.settle();
    }
    EXPECT_EQ(pods.machine.record().members.size(), 3u);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
  }
}

// After a time without operators the agents find the new one when its address leads to it.
TEST(JobMachineLeader, WaitsUntilItIsFound) {
  FakePods pods = led_anew();
  pods.after(20s);
  pods.connect(0);
  pods.after(2400ms);
  pods.connect(1);
  pods.connect(2);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.last(i, kAbort), nullptr);
}

TEST(JobMachineLeader, ThatNobodyFindsGivesUpWaiting) {
  FakePods pods = led_anew();
  pods.after(32s);
  EXPECT_EQ(pods.view().phase, Phase::kRecovering);
  pods.after(1s);
  EXPECT_EQ(pods.view().phase, Phase::kWaiting);
  EXPECT_TRUE(pods.view().failures.empty()) << "that none has found us is no failure of theirs";
}

// The routes to a new operator may open minutes late, and one after the other.
TEST(JobMachineLeader, ThatIsFoundLateGivesTheOthersTimeAsWell) {
  FakePods pods = led_anew();
  pods.after(120s);
  pods.connect(2);
  EXPECT_EQ(pods.view().phase, Phase::kRecovering);
  pods.after(4s);
  pods.connect(1);
  pods.after(4900ms);
  EXPECT_EQ(pods.last(2, kAbort), nullptr);
  pods.after(200ms);  // 0 does not come: it is lost, once
  EXPECT_NE(pods.last(2, kAbort), nullptr);
  pods.obey_aborts();
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  ASSERT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().failures[0].pod_uid, "uid-0");
}

// The record was restored from a backup: the workers have gone on to generations that it does not
// know, and others may have been begun.
TEST(JobMachineLeader, GoesAboveEveryGenerationThatAWorkerNames) {
  FakePods before(3);
  before.start_training();
  FakePods pods(3, record_of(before));
  pods.standings = before.standings;
  for (int i = 0; i < 3; ++i) pods.standing(i).set_generation(7);
  pods.connect_all();
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
  EXPECT_GT(pods.machine.record().generation, 7 + kRestoredGap);
}

TEST(JobMachineLeader, AGenerationThatNobodyCanHaveToldIsNotFollowed) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.standing(2).set_fenced_below(~std::uint64_t{0});
  pods.connect(2);
  pods.make_ready(2);
  EXPECT_TRUE(pods.was_restarted(2));
  pods.exit(0, -1, 11);
  pods.settle();
  EXPECT_EQ(pods.machine.record().generation, 2u) << "it does not wrap, nor jump";
}

// The record says how far the job was when it was written; what is computed again counts from what
// somebody has seen since, and is on record for the next leader.
TEST(JobMachineLeader, StepsThatAreComputedAgainAreOnRecord) {
  Record record;
  record.generation = 4;
  record.phase = "Training";
  record.step = 25;
  record.recomputed_steps = 3;
  FakePods pods(2, record);
  pods.connect_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(5);
    pods.make_ready(i);
  }
  pods.after(6s);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->recomputed_steps, 23u);
  const JobMachine next(Timing{}, pods.wish, *pods.to_write, pods.now);
  EXPECT_EQ(next.view().recomputed_steps, 23u);
  pods.settle();
  EXPECT_EQ(pods.view().recomputed_steps, 23u);
}

// What is charged to maxRestarts is of the job's life: each failure that costs a generation stands
// in the write of the next one.
TEST(JobMachineLeader, FailuresOfWorkersAreOnRecord) {
  Record record;
  record.failures = 4;
  FakePods pods(2, record);
  pods.start_training();
  pods.exit(1, 1, 0);
  pods.settle();
  EXPECT_EQ(pods.view().failure_count, 5u);
  ASSERT_FALSE(pods.written.empty());
  EXPECT_EQ(pods.written.back().failures, 5u);
  const JobMachine next(Timing{}, pods.wish, pods.written.back(), pods.now);
  EXPECT_EQ(next.view().failure_count, 5u);
}

TEST(JobMachineLeader, DoesNotWaitForPodsThatAreGone) {
  FakePods pods = led_anew();
  pods.change_wish([](Wish& wish) {
    for (Wish::Pod& pod : wish.pods) pod.uid += "-next";
  });
  pods.after(5100ms);
  EXPECT_EQ(pods.view().phase, Phase::kWaiting);
}

// A step needs every member: while steps are committed, who has not found the new leader yet lives.
TEST(JobMachineLeader, WhoIsMissingLivesWhileStepsAreCommitted) {
  FakePods pods = led_anew();
  pods.connect(0);
  pods.connect(1);
  for (int second = 0; second < 10; ++second) {
    pods.after(1s);
    pods.commit_all();
  }
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(4900ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(200ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineLeader, RepairsWhatTheOldOneLeftHalfDone) {
  FakePods before(3);
  before.start_training();
  before.exit(2, -1, 9);
  before.swap_done();
  before.obey_aborts();  // and there the old one died: no Form was obeyed
  FakePods pods(2, record_of(before));
  pods.standings = {before.standings[0], before.standings[1]};
  pods.connect_all();
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_GT(pods.machine.record().generation, before.machine.record().generation);
}

// The old leader wrote a recovery of a finished job and died: rank 0 of that record is not in its
// generation yet, and nobody writes the last checkpoint before it is.
TEST(JobMachineLeader, ARecoveryOfTheLastStepIsDoneBeforeTheFinish) {
  FakePods before(3);
  before.start_training();
  for (int i = 0; i < 3; ++i) {
    before.standing(i).set_phase(wire::WORKER_FINISHED);
    before.standing(i).set_has_checkpoint(false);
  }
  Record record = record_of(before);
  ++record.generation;
  record.phase = "Recovering";
  record.members.erase(record.members.begin());
  FakePods pods(3, record);
  pods.wish.training = R"({"checkpoint":{"path":"/ckpt"}})";
  pods.machine = JobMachine(Timing{}, pods.wish, record, pods.now);
  pods.standings = before.standings;
  pods.connect_all();
  pods.after(1s);
  EXPECT_NE(pods.last(1, kAbort), nullptr);
  EXPECT_NE(pods.view().phase, Phase::kFinished);
}

TEST(JobMachineLeader, SaysSinceWhenItWaitsOnlyOnceItHasWaited) {
  FakePods before(2);
  before.start_training();
  FakePods pods(2, record_of(before));
  pods.after(1s);
  EXPECT_FALSE(pods.view().waiting_since.has_value());  // everybody may still come back
  FakePods fresh(2);
  fresh.after(1s);
  ASSERT_TRUE(fresh.view().waiting_since.has_value());
  fresh.start_training();
  EXPECT_FALSE(fresh.view().waiting_since.has_value());
}

TEST(JobMachineLeader, AFinishedJobStaysFinished) {
  Record record;
  record.generation = 4;
  record.phase = "Finished";
  FakePods pods(1, record);
  pods.connect(0);
  pods.make_ready(0);
  pods.after(kRetireDeadline + 1s);
  EXPECT_EQ(pods.view().phase, Phase::kFinished);
  EXPECT_EQ(pods.last(0, kForm), nullptr);
}

// ---- Stuck workers
// ----------------------------------------------------------------------------------------------

void stand_still(FakePods& pods, int laggard) {
  for (int i = 0; i < 3; ++i) pods.standing(i).set_phase_name(i == laggard ? "compute" : "reduce");
}

TEST(JobMachineStuck, TheWorkerThatOthersWaitForIsRestarted) {
  FakePods pods(3);
  pods.start_training();
  stand_still(pods, 1);
  pods.after(19s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.was_restarted(2));
}

// One waits for votes of a round that the others have decided. They compare their states before the
// next, and wait for it: nobody of them is to blame.
TEST(JobMachineStuck, WhoWaitsWhereStatesAreComparedIsNotRestarted) {
  FakePods pods(3);
  pods.start_training();
  const std::uint64_t before = pods.machine.record().generation;
  for (int i = 0; i < 3; ++i) pods.standing(i).set_phase_name(i == 1 ? "commit" : "compare");
  pods.after(21s);
  pods.settle();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pods.was_restarted(i)) << i;
  EXPECT_GT(pods.machine.record().generation, before);
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
}

TEST(JobMachineStuck, LongStepsAndTheFirstOneGetLongerDeadlines) {
  FakePods pods(3);
  pods.start_training();
  for (int i = 0; i < 3; ++i) pods.standing(i).set_step_seconds(0);
  stand_still(pods, 1);
  pods.after(119s);
  EXPECT_FALSE(pods.was_restarted(1));  // nobody knows yet how long a step takes
  pods.commit_all(10);
  stand_still(pods, 1);
  pods.after(79s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
}

// Nobody's end is false: who hangs after a burst of crashes is found as soon as at any other time.
TEST(JobMachineStuck, LossesThatAreCertainLeaveTheDeadlineAsItIs) {
  FakePods pods(5);
  pods.start_training();
  for (int crashed = 4; crashed >= 2; --crashed) {
    pods.exit(crashed, -1, 11);  // a recovery, and no step after it
    pods.settle();
  }
  for (int i = 0; i < 2; ++i) pods.standing(i).set_phase_name(i == 1 ? "compute" : "reduce");
  pods.after(19s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
}

// A job that has lost its whole state waits until the next processes are ready. Each pass finds it
// so: that is no alarm of its own, and nothing new.
TEST(JobMachineStuck, WaitingForTheNextProcessesLeavesTheDeadlineAsItIs) {
  FakePods pods(2);
  pods.start_training();
  for (int i = 0; i < 2; ++i) {
    pods.exit(i, -1, 11);
    if (pods.to_write) pods.swap_done();
  }
  pods.clear();
  for (int i = 0; i < 2; ++i) {
    wire::WorkerStanding& s = pods.standing(i);
    s.mutable_id()->set_incarnation(2);
    s.set_phase(wire::WORKER_STARTING);
    s.set_generation(0);
    s.set_has_state(false);
    s.set_step_seconds(0);
    pods.say(i);
  }
  pods.after(30s);  // they read their data
  pods.now += 50ms;
  pods.machine.tick(pods.now, pods.now);
  EXPECT_FALSE(pods.machine.take_outputs().changed);
  for (int i = 0; i < 2; ++i) pods.make_ready(i);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kTraining);
  for (int i = 0; i < 2; ++i) pods.standing(i).set_phase_name(i == 1 ? "compute" : "reduce");
  pods.after(Timing{}.first_step - 1s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
}

// A leader before has left it out, and died before its order to restart it was heard.
TEST(JobMachineStuck, WhoIsNoMemberAndDoesNotStopIsRestarted) {
  FakePods before(3);
  before.start_training();
  before.exit(2, -1, 11);
  before.settle();
  FakePods pods(3, before.machine.record());
  ASSERT_EQ(pods.machine.record().members.size(), 2u);
  pods.standings = before.standings;  // 2 says still that it trains
  pods.connect_all();
  const auto train_for = [&](Duration time) {
    for (const MonoTime until = pods.now + time; pods.now < until; pods.commit_all())
      pods.after(1s);
  };
  train_for(Timing{}.start_deadline - 1s);
  EXPECT_NE(pods.last(2, kAbort), nullptr);
  EXPECT_FALSE(pods.was_restarted(2));
  train_for(2s);
  EXPECT_TRUE(pods.was_restarted(2));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.was_restarted(1));
}

// All wait for each other, twice: those who are restarted must not be all who hold the state.
TEST(JobMachineStuck, WhenNobodyLagsHalfOfThemGo) {
  FakePods pods(3);
  pods.start_training();
  pods.commit_all();
  stand_still(pods, -1);
  pods.after(21s);
  pods.settle();  // everybody together once more
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
  stand_still(pods, -1);
  pods.after(41s);
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.was_restarted(1));
  EXPECT_TRUE(pods.was_restarted(2));
}

}  // namespace
}  // namespace rubato::coordinator
