// JobMachine: recoveries.
#include "tests/unit/coordinator/fake_pods.h"

#include <utility>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

TEST(JobMachineRecovery, AbortAndWriteGoOutTogetherAndTheFormWaitsForBoth) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  const std::uint64_t before = pods.machine.record().generation;
  pods.exit(2, -1, 11);
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  EXPECT_EQ(pods.last(0, kAbort)->abort().below(), before + 1);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  pods.swap_done();
  EXPECT_EQ(pods.last(0, kForm), nullptr);
  pods.obey_aborts();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_RECOVER);
  EXPECT_EQ(pods.last(0, kForm)->form().base_seq(), 1u);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  ASSERT_FALSE(pods.view().changes.empty());
  EXPECT_EQ(pods.view().changes.back().kind, "recover");
  EXPECT_EQ(pods.view().failure_count, 1u);
}

// ---- What changes from the generation that stood
// -------------------------------------------------------------------------------

// All members of the pods' last Form, named by whoever knows those of `before`.
wire::Form whole(const FakePods& pods, int pod, const wire::Form& before) {
  wire::Form form = pods.last(pod, kForm)->form();
  EXPECT_TRUE(wire::name_all(form, before.generation(), before.members()));
  return form;
}

TEST(JobMachineRecovery, WhoKnowsTheMembersIsToldWhatChanges) {
  FakePods pods(4);
  pods.start_training();
  const wire::Form before = pods.last(0, kForm)->form();
  EXPECT_EQ(before.members_of(), 0u);  // nobody knows anything yet
  EXPECT_EQ(before.members_size(), 4);
  for (const int pod : {0, 2, 3}) {  // 2 is of a build before
    if (pod != 2) pods.standing(pod).set_members_of(before.generation());
    pods.say(pod);
  }
  pods.clear();
  pods.exit(1, -1, 11);
  pods.settle();
  const wire::Form all = pods.last(2, kForm)->form();
  EXPECT_EQ(all.members_of(), 0u);
  ASSERT_EQ(all.members_size(), 3);
  ASSERT_EQ(all.shares_size(), 3);
  EXPECT_FALSE(all.has_share());
  for (const auto& [pod, rank] : {std::pair(0, 0), std::pair(3, 2)}) {
    const wire::Form& told = pods.last(pod, kForm)->form();
    EXPECT_EQ(told.members_of(), before.generation());
    EXPECT_EQ(told.members_size(), 0);
    EXPECT_EQ(told.shares_size(), 0);
    ASSERT_TRUE(told.has_share());
    EXPECT_EQ(told.share().SerializeAsString(), all.shares(rank).SerializeAsString());
    wire::Form meant = whole(pods, pod, before);
    meant.clear_share();
    *meant.mutable_shares() = all.shares();
    EXPECT_EQ(meant.SerializeAsString(), all.SerializeAsString());
  }
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineRecovery, WhoCannotUseTheChangeIsToldAllOnce) {
  FakePods pods(3);
  pods.start_training();
  const std::uint64_t before = pods.machine.record().generation;
  for (const int pod : {0, 1}) {
    pods.standing(pod).set_members_of(before);
    pods.say(pod);
  }
  pods.exit(2, -1, 11);
  pods.deaf = 1;
  pods.settle();
  ASSERT_EQ(pods.last(1, kForm)->form().members_of(), before);
  const std::size_t told = pods.count(1, kForm);
  pods.after(1s);
  EXPECT_EQ(pods.count(1, kForm), told);
  pods.standing(1).clear_members_of();
  pods.say(1);
  pods.after(1s);
  EXPECT_EQ(pods.count(1, kForm), told + 1);
  EXPECT_EQ(pods.last(1, kForm)->form().members_of(), 0u);
  EXPECT_EQ(pods.last(1, kForm)->form().members_size(), 2);
  pods.deaf.reset();
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// The record names no addresses: who was no member is the only one that is named in whole.
TEST(JobMachineRecovery, ALeaderThatCameAfterTellsTheChangeToo) {
  FakePods pods(3);
  pods.start_training();
  const wire::Form before = pods.last(0, kForm)->form();
  FakePods next(3, pods.machine.record());
  next.standings = pods.standings;
  next.known_members = pods.known_members;
  for (const int pod : {0, 1, 2}) next.standing(pod).set_members_of(before.generation());
  next.connect_all();
  next.after(1s);
  next.settle();
  next.exit(2, -1, 11);
  next.settle();
  EXPECT_EQ(next.last(1, kForm)->form().members_of(), before.generation());
  EXPECT_EQ(whole(next, 1, before).members_size(), 2);
}

// All who have trained are lost while 2 was about to join. 3, which follows too, holds a round that
// was decided after 2 had prepared, and its answer comes last.
TEST(JobMachineRecovery, AFollowerIsHeardWhereAllWhoHaveTrainedAreLost) {
  FakePods pods(4, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  const auto follow = [&](int pod, std::uint64_t seq) {
    pods.connect(pod);
    pods.make_ready(pod);
    pods.standing(pod).set_phase(wire::WORKER_FOLLOWING);
    pods.standing(pod).set_following(pods.machine.record().generation);
    pods.standing(pod).set_has_state(true);
    pods.standing(pod).set_seq(seq);
    pods.standing(pod).set_caught_up(true);
    pods.say(pod, [](wire::WorkerEvent& event) { event.mutable_caught_up(); });
  };
  follow(2, pods.standing(0).seq());
  pods.swap_done();
  follow(3, pods.standing(0).seq() + 1);
  for (const int pod : {0, 1}) pods.disconnect(pod);
  pods.after(1s);
  pods.swap_done();
  pods.clear();
  pods.answer_abort(2);
  EXPECT_EQ(pods.last(2, kForm), nullptr) << "3 may know more";
  pods.answer_abort(3);
  pods.settle();
  ASSERT_NE(pods.last(3, kForm), nullptr);
  EXPECT_EQ(pods.last(3, kForm)->form().base_seq(), 2u);
}

TEST(JobMachineRecovery, AConnectionMayComeBackWithinTheGrace) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.disconnect(1);
  pods.after(200ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.connect(1);
  pods.after(1s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.disconnect(1);
  pods.after(300ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineRecovery, AClosedConnectionAndABrokenLinkTogetherAreDeath) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.disconnect(1);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.say(0, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(pods.machine.record().generation);
    event.mutable_suspect()->mutable_peer()->set_pod_uid("uid-1");
  });
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineRecovery, SilenceIsDeath) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.connected[1] = false;  // frozen: no word, no end
  pods.after(2400ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(200ms);
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  EXPECT_TRUE(pods.view().failures.back().infrastructure);
  EXPECT_EQ(pods.view().recovers_from, "Silent");
}

TEST(JobMachineRecovery, WhatFailedBeforeIsNotWhyItRecoversNow) {
  FakePods pods(3);
  pods.start_training();
  pods.exit(2, -1, 9);
  EXPECT_EQ(pods.view().recovers_from, "Crash");
  pods.settle();
  pods.commit_all();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods.erase(wish.pods.begin() + 1); });  // deleted, at once
  EXPECT_NE(pods.last(0, kAbort), nullptr);
  EXPECT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().recovers_from, "PodDeleted");
}

TEST(JobMachineRecovery, WhoDoesNotAnswerAnAbortIsLeftOut) {
  FakePods pods(4);
  pods.start_training();
  pods.clear();
  pods.exit(3, -1, 9);
  pods.swap_done();
  const std::uint64_t first = pods.machine.record().generation;
  for (const int i : {0, 1}) pods.answer_abort(i);
  pods.after(1900ms);
  EXPECT_FALSE(pods.was_restarted(2));
  pods.after(200ms);
  EXPECT_TRUE(pods.was_restarted(2));
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_GT(pods.to_write->generation, first);
  EXPECT_EQ(pods.to_write->members.size(), 2u);
}

// Its agent hung up a moment ago, and what has arrived since is not taken down yet: nobody would
// hear the order, and its worker is charged for nothing.
TEST(JobMachineRecovery, WhoseAgentHasHungUpIsNotRestarted) {
  FakePods pods(3);
  pods.start_training();
  pods.exit(2, -1, 11);
  pods.swap_done();
  pods.answer_abort(0);
  pods.after(1900ms);
  pods.disconnect(1);
  pods.now += 400ms;
  pods.machine.tick(pods.now, pods.now - 300ms);
  const Outputs out = pods.machine.take_outputs();
  for (const Send& send : out.sends) EXPECT_FALSE(send.message.has_restart_worker());
  EXPECT_EQ(pods.view().failure_count, 1u);
}

// Pods of one node fall silent one after the other. That is one alarm: who hangs meanwhile is found
// after twice the time, not after that for each of them.
TEST(JobMachineRecovery, TheSilenceOfSeveralIsOneAlarm) {
  FakePods pods(7);
  pods.start_training();
  for (const int silent : {6, 5, 4}) {
    pods.connected[static_cast<std::size_t>(silent)] = false;
    pods.after(100ms);
  }
  pods.after(2100ms);
  for (int i = 0; i < 10; ++i) {
    pods.after(50ms);
    if (pods.to_write) pods.swap_done();
  }
  EXPECT_EQ(pods.machine.record().members.size(), 4u);
  for (const int i : {0, 1, 2}) pods.answer_abort(i);
  pods.after(3s);
  EXPECT_FALSE(pods.was_restarted(3));
  pods.after(1200ms);
  EXPECT_TRUE(pods.was_restarted(3));
}

// Half of a rack's pods hang up one after the other, and none of the rest can have committed a step
// in between.
TEST(JobMachineRecovery, LossesOneAfterTheOtherAreNoAttemptsOfTheirOwn) {
  FakePods pods(2 * kAttemptsMax + 20);
  pods.wish.micro_batches = 1000;
  pods.change_wish([](Wish&) {});
  pods.start_many();
  const int lost = kAttemptsMax + 20;
  for (int i = 0; i < lost; ++i) {
    pods.disconnect(i);
    pods.after(300ms / 10);
    if (pods.to_write) pods.swap_done();
  }
  pods.after(500ms);
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kWaiting) << pods.view().failure_message;
  EXPECT_EQ(pods.machine.record().members.size(), static_cast<std::size_t>(kAttemptsMax));
}

// Agents of a version before name the workers that have ended in each heartbeat.
TEST(JobMachineRecovery, HeartbeatsReviveNobodyWhoHasEnded) {
  FakePods pods(3);
  pods.start_training();
  pods.exit(2, -1, 11);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  pods.clear();
  pods.after(1s);  // and beats of all three
  EXPECT_EQ(pods.last(2, kAbort), nullptr);
  pods.exit(1, -1, 11);
  pods.after(100ms);
  EXPECT_EQ(pods.last(2, kAbort), nullptr);
}

// The next process of a worker that has ended, which follows, and all go on.
void come_back(FakePods& pods, int pod) {
  wire::WorkerStanding& s = pods.standing(pod);
  s.mutable_id()->set_incarnation(s.id().incarnation() + 1);
  s.set_phase(wire::WORKER_STARTING);
  s.set_generation(0);
  s.set_has_state(false);
  s.set_fenced_below(0);
  pods.clear();
  pods.say(pod);
  pods.make_ready(pod);
  ASSERT_NE(pods.last(pod, kFollow), nullptr);
  s.set_phase(wire::WORKER_FOLLOWING);
  s.set_has_state(true);
  s.set_seq(pods.standing(0).seq());
  s.set_following(pods.last(pod, kFollow)->follow().generation());
  s.set_caught_up(true);
  pods.say(pod, [](wire::WorkerEvent& event) { event.mutable_caught_up(); });
  pods.settle();
}

TEST(JobMachineRecovery, BelowTheMinimumStateIsHeldUntilOthersCome) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) { wish.min_workers = 3; });
  pods.start_training();
  pods.clear();
  pods.exit(2, -1, 9);
  pods.settle();
  EXPECT_TRUE(pods.last(0, kForm)->form().parked());
  EXPECT_EQ(pods.view().phase, Phase::kParked);
  EXPECT_TRUE(pods.view().parked_since.has_value());
  come_back(pods, 2);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().members.size(), 3u);
}

TEST(JobMachineRecovery, AWriteThatMeetsAnotherStopsEverything) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.exit(2, -1, 9);
  pods.swap_conflict();
  EXPECT_TRUE(pods.machine.must_reload());
  pods.obey_aborts();
  EXPECT_EQ(pods.last(0, kForm), nullptr);
}

TEST(JobMachineRecovery, NewsOfAReplacedIncarnationChangeNothing) {
  FakePods pods(3);
  pods.start_training();
  const wire::WorkerStanding old = pods.standing(2);
  pods.exit(2, -1, 9);
  pods.standing(2).mutable_id()->set_incarnation(2);
  pods.standing(2).set_phase(wire::WORKER_STARTING);
  pods.standing(2).set_generation(0);
  pods.say(2);
  const wire::WorkerStanding fresh = pods.standing(2);
  pods.standing(2) = old;
  pods.say(2);
  pods.standing(2) = fresh;
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
}

// Told to follow anew just before the recovery, it drops what it had when it was asked for it.
TEST(JobMachineRecovery, WhoWasAskedMayHaveDroppedItsState) {
  FakePods pods(2);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.start_training();
  pods.exit(1, -1, 9);
  pods.settle();
  pods.standing(1).mutable_id()->set_incarnation(2);
  pods.standing(1).set_phase(wire::WORKER_STARTING);
  pods.say(1);
  pods.make_ready(1);
  pods.standing(1).set_phase(wire::WORKER_FOLLOWING);
  pods.standing(1).set_generation(0);
  pods.say(1);
  pods.clear();
  pods.exit(0, -1, 9);
  pods.standing(0).mutable_id()->set_incarnation(2);
  pods.standing(0).set_phase(wire::WORKER_STARTING);
  pods.standing(0).set_has_state(false);
  pods.say(0);
  ASSERT_NE(pods.last(1, kAbort), nullptr);
  pods.standing(1).set_has_state(false);
  pods.standing(1).set_phase(wire::WORKER_READY);
  pods.settle();
  pods.make_ready(0);
  pods.after(1s);
  pods.settle();
  ASSERT_NE(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.last(1, kForm)->form().mode(), wire::FORM_START);
}

void fail(FakePods& pods, int pod, const std::string& reason) {
  pods.say(pod, [&](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason(reason);
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
}

void form_fails(FakePods& pods, int pod) { fail(pods, pod, "FormFailed"); }

// Each generation stands, and no step of it is computed. How many there were.
std::uint64_t fail_each_step(FakePods& pods, const std::string& reason, Duration time) {
  const std::uint64_t before = pods.machine.record().generation;
  const MonoTime end = pods.now + time;
  std::uint64_t failed = 0;
  while (pods.now < end && pods.view().end == Phase::kWaiting) {
    const std::uint64_t generation = pods.machine.record().generation;
    if (generation > std::exchange(failed, generation))
      for (int pod = 0; pod < 2; ++pod) fail(pods, pod, reason);
    pods.now += 50ms;
    pods.beat();
    pods.settle();
    pods.clear();
  }
  return pods.machine.record().generation - before;
}

// Its step thread hangs, its control thread answers every Abort and every probe. Those whom its
// links do not reach give up one generation after the other before the deadline of any is over.
TEST(JobMachineRecovery, WhoTakesUpNoGenerationIsRestartedHoweverOftenItIsBegunAgain) {
  FakePods pods(6);
  pods.start_training();
  pods.deaf = 1;
  for (const int lost : {5, 4, 3}) {
    pods.exit(lost, -1, 9);
    pods.settle();
  }
  for (int second = 1; second < 200 && !pods.was_restarted(1); ++second) {
    pods.after(1s);
    if (second % 60 == 0) form_fails(pods, 2);
    if (second % 60 == 0) pods.break_link(0, 2);  // it closes its links; that is no fault of theirs
    pods.settle();
  }
  EXPECT_TRUE(pods.was_restarted(1));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.was_restarted(2));
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// Generation after generation forms and none commits a step: that has an end, which says so.
TEST(JobMachineRecovery, AttemptsWithoutAStepHaveAnEnd) {
  FakePods pods(2);
  pods.start_training();
  EXPECT_LT(fail_each_step(pods, "FormFailed", 13s), 10u) << "which leaves time to help";
  EXPECT_LE(fail_each_step(pods, "FormFailed", 40min), static_cast<unsigned>(kAttemptsMax));
  EXPECT_EQ(pods.view().end, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "RecoveryFailed");
}

// The token file is cut while the job trains.
TEST(JobMachineRecovery, DataThatCannotBeReadMayComeBackForHalfAnHour) {
  FakePods pods(2);
  pods.start_training();
  fail_each_step(pods, "DataDamaged", 29min + 30s);
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  EXPECT_EQ(pods.view().phase, Phase::kRecovering) << "the next attempt is awaited";
  EXPECT_EQ(pods.view().recovers_from, "DataDamaged");
  EXPECT_EQ(pods.view().changes.back().cause, "DataDamaged");
  EXPECT_NE(pods.view().reason.find("DataDamaged of pod gpt-"), std::string::npos);
  fail_each_step(pods, "DataDamaged", 2min);
  EXPECT_EQ(pods.view().end, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "DataDamaged");
}

// Nobody could compute while it was parked: the half hour begins with those who go on.
TEST(JobMachineRecovery, ParkedTimeIsNoTimeWithoutData) {
  FakePods pods(2);
  pods.start_training();
  pods.exit(1, -1, 9);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kParked);
  pods.after(31min);
  come_back(pods, 1);
  ASSERT_EQ(pods.view().phase, Phase::kTraining);
  const std::uint64_t generation = pods.machine.record().generation;
  fail(pods, 0, "DataUnreadable");
  pods.after(2s);
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  pods.settle();
  EXPECT_EQ(pods.machine.record().generation, generation + 1);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// They have half an hour, and are no part of the number that others have.
TEST(JobMachineRecovery, AttemptsForDataAreNotCountedWithOthers) {
  FakePods pods(2);
  pods.start_training();
  EXPECT_GE(fail_each_step(pods, "DataUnreadable", 29min), static_cast<unsigned>(kAttemptsMax) - 1);
  fail_each_step(pods, "FormFailed", 75s);
  EXPECT_EQ(pods.view().recovers_from, "FormFailed");
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
}

TEST(JobMachineRecovery, AStepEndsTheBackOff) {
  FakePods pods(2);
  pods.start_training();
  fail_each_step(pods, "DataUnreadable", 5min);
  pods.after(31s);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  const std::uint64_t generation = pods.machine.record().generation;
  fail(pods, 0, "DataUnreadable");
  pods.after(200ms);
  pods.settle();
  EXPECT_EQ(pods.machine.record().generation, generation + 1) << "at once";
}

TEST(JobMachineRecovery, AStopDoesNotWaitForTheNextAttempt) {
  FakePods pods(2);
  pods.start_training();
  fail_each_step(pods, "DataDamaged", 5min);
  ASSERT_EQ(pods.view().phase, Phase::kRecovering);
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.after(100ms);
  pods.settle();
  EXPECT_NE(pods.last(0, kRequest), nullptr);
}

TEST(JobMachineRecovery, NoCauseIsToldThatIsNotTrue) {
  const auto cause = [](const std::function<void(FakePods&)>& happens) {
    FakePods pods(3);
    pods.start_training();
    happens(pods);
    pods.after(200ms);
    pods.settle();
    return pods.view().recovers_from;
  };
  EXPECT_EQ(cause([](FakePods& pods) { pods.break_link(0, 1); }), "LinkFailed");
  EXPECT_EQ(cause([](FakePods& pods) { fail(pods, 2, "StepFailed"); }), "StepFailed");
  EXPECT_EQ(cause([](FakePods& pods) {  // its peers miss it
              pods.break_link(0, 2);
              fail(pods, 2, "DataDamaged");
              pods.break_link(1, 2);
            }),
            "DataDamaged");
  EXPECT_EQ(cause([](FakePods& pods) {
              pods.change_wish([](Wish& wish) { wish.stop = true; });
              pods.change_wish([](Wish& wish) { wish.stop = false; });
            }),
            "Resumed");
  EXPECT_EQ(cause([](FakePods& pods) {  // it is heard with a step of the others
              pods.asleep = true;
              pods.exit(2, -1, 9);
              pods.commit_all();
              pods.asleep = false;
            }),
            "Crash");
  EXPECT_EQ(cause([](FakePods& pods) { pods.answer_abort(1); }), "Stuck");  // a leader before
}

// What it was told in a recovery that is over does not count.
TEST(JobMachineRecovery, WhoWasToldOfAnOlderGenerationHasItsTime) {
  FakePods pods(4);
  pods.start_training();
  pods.deaf = 1;
  pods.exit(3, -1, 9);
  pods.settle();
  pods.after(5s);
  pods.deaf.reset();
  pods.settle();
  pods.commit_all();
  pods.after(2s);
  pods.deaf = 1;
  pods.exit(2, -1, 9);
  pods.settle();
  pods.after(9s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
}

}  // namespace
}  // namespace rubato::coordinator
