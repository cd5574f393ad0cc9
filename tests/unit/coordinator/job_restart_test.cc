// JobMachine: jobs whose workers hold no state, and whose programs start again.
#include "tests/unit/coordinator/fake_pods.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

struct Programs : FakePods {
  explicit Programs(int pods, std::uint32_t min = 2) : FakePods(pods) {
    change_wish([&](Wish& w) {
      w.is_stateless = true;
      w.training.clear();
      w.min_workers = w.start_workers = min;
    });
  }
  void arrive(int pod) {
    connect(pod);
    standing(pod).set_phase(wire::WORKER_READY);
    say(pod);
  }
  void start(int count) {
    for (int i = 0; i < count; ++i) arrive(i);
    after(1s);
    settle();
    run_on();
  }
  void run_on() {  // every program that runs has run for a while
    for (int i = 0; i < static_cast<int>(standings.size()); ++i) {
      if (standing(i).phase() != wire::WORKER_TRAINING) continue;
      standing(i).set_seq(1);
      if (connected[static_cast<std::size_t>(i)]) say(i);
    }
  }
  void fail(int pod) {
    standing(pod).set_phase(wire::WORKER_ABORTED);
    say(pod, [](wire::WorkerEvent& event) {
      event.mutable_failure()->set_reason("ProgramFailed");
      event.mutable_failure()->set_message("the program exited with status 3");
      event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
    });
  }
  std::size_t members() const { return machine.record().members.size(); }
};

TEST(JobRestart, AllProgramsAreGoneBeforeTheNextBegin) {
  Programs pods(2);
  pods.start(2);
  ASSERT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().generation, 1u);
  pods.clear();
  pods.fail(1);
  pods.after(500ms);
  ASSERT_TRUE(pods.to_write.has_value());
  pods.swap_done();
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  pods.answer_abort(1);
  EXPECT_EQ(pods.last(1, kForm), nullptr) << "the program of pod 0 still runs";
  pods.standing(0).mutable_listen()->set_port(77);
  pods.answer_abort(0);
  ASSERT_NE(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.last(1, kForm)->form().members(0).address().port(), 77u) << "where it is now";
}

TEST(JobRestart, AProgramThatDoesNotEndIsKilled) {
  Programs pods(2);
  pods.start(2);
  pods.fail(1);
  pods.after(500ms);
  pods.swap_done();
  pods.answer_abort(1);
  pods.after(kProgramEndLimit + 1s);
  EXPECT_TRUE(pods.was_restarted(0));
}

TEST(JobRestart, AFailureIsChargedOnceAndAllStartAgain) {
  Programs pods(3);
  pods.start(3);
  pods.fail(1);
  pods.fail(0);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.view().failure_count, 1u);
  EXPECT_EQ(pods.view().failures.back().pod, "gpt-1") << "the first one";
  EXPECT_EQ(pods.members(), 3u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  pods.run_on();
  EXPECT_EQ(pods.view().changes.back().kind, "recover");
  pods.fail(2);
  pods.after(1s);
  EXPECT_EQ(pods.view().failure_count, 2u);
}

// An agent that comes back says it again, for whoever leads then.
TEST(JobRestart, AFailureThatIsToldAgainIsNoOther) {
  Programs pods(2);
  pods.start(2);
  pods.fail(1);
  pods.after(500ms);
  for (int i = 0; i < 2; ++i) {  // before the next generation is on record, and after
    pods.disconnect(1);
    pods.connect(1);
    pods.fail(1);
    pods.after(500ms);
    if (pods.to_write) pods.swap_done();
  }
  pods.settle();
  pods.after(1s);
  EXPECT_EQ(pods.view().failure_count, 1u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobRestart, AProgramThatFailsAtOnceIsCharged) {
  Programs pods(2);
  pods.start(2);
  pods.fail(0);
  pods.after(500ms);
  pods.swap_done();
  pods.obey_aborts();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  pods.standing(0).set_generation(2);
  pods.fail(0);
  pods.obey_forms();
  pods.after(1s);
  EXPECT_EQ(pods.view().failure_count, 2u);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->generation, 3u);
}

TEST(JobRestart, AJobIsFinishedOnceEachOfItsProgramsHasEnded) {
  Programs pods(2);
  pods.start(2);
  pods.standing(0).set_phase(wire::WORKER_FINISHED);
  pods.say(0);
  pods.after(1s);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  pods.disconnect(1);  // its node is lost: it had not ended
  pods.after(5s);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->generation, 2u) << "the others start again, without it";
}

TEST(JobRestart, AFailureForTheLossOfAnotherIsNotCharged) {
  Programs pods(3);
  pods.start(3);
  pods.fail(0);
  pods.disconnect(2);
  pods.after(5s);
  pods.settle();
  EXPECT_EQ(pods.view().failure_count, 0u);
  EXPECT_EQ(pods.members(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobRestart, WhoseProcessComesBackIsTakenAlong) {
  Programs pods(2, 1);
  pods.start(2);
  pods.begin_anew(1);
  pods.after(5s);
  pods.settle();
  pods.run_on();
  EXPECT_EQ(pods.members(), 2u);
  EXPECT_EQ(pods.view().generation, 2u) << "not first without it";
}

TEST(JobRestart, NewcomersAreTakenAlongTogether) {
  Programs pods(4, 1);
  pods.start(1);
  EXPECT_EQ(pods.members(), 1u);
  pods.arrive(1);
  pods.after(500ms);
  pods.arrive(2);
  pods.arrive(3);
  pods.after(4 * kRestartSettle);
  pods.settle();
  pods.run_on();
  EXPECT_EQ(pods.view().generation, 2u);
  EXPECT_EQ(pods.members(), 4u);
  EXPECT_EQ(pods.view().changes.back().kind, "join");
  EXPECT_EQ(pods.view().rescales, 1u);
}

TEST(JobRestart, BelowTheMinimumAllStandStillUntilOthersCome) {
  Programs pods(3);
  pods.start(2);
  pods.disconnect(1);
  pods.after(5s);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kParked);
  EXPECT_EQ(pods.standing(0).phase(), wire::WORKER_PARKED);
  pods.arrive(2);
  pods.after(2 * kRestartSettle);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.members(), 2u);
}

TEST(JobRestart, LeaversAreLeftBehindAndRetire) {
  Programs pods(3);
  pods.start(3);
  pods.clear();
  pods.change_wish([](Wish& w) { w.pods[1].leaving = true; });
  pods.after(1s);
  pods.settle();
  pods.after(1s);
  EXPECT_EQ(pods.members(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_NE(pods.last(1, kRetire), nullptr);
}

TEST(JobRestart, WhereAllLeaveTheirProgramsEnd) {
  Programs pods(3, 1);
  pods.start(2);
  pods.clear();
  pods.change_wish([](Wish& w) { w.pods[0].leaving = w.pods[1].leaving = true; });
  pods.after(1s);
  pods.obey_aborts();
  EXPECT_EQ(pods.standing(0).phase(), wire::WORKER_ABORTED);
  EXPECT_EQ(pods.standing(1).phase(), wire::WORKER_ABORTED);
  pods.arrive(2);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.members(), 1u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobRestart, AStopWaitsForThoseWhoLive) {
  Programs pods(3);
  pods.start(3);
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.stop_reason = "suspended";
  });
  pods.after(100ms);
  pods.fail(0);  // it takes SIGTERM for a failure
  pods.disconnect(2);
  pods.after(5s);
  for (const int pod : {0, 1}) {
    ASSERT_NE(pods.last(pod, kRequest), nullptr);
    EXPECT_NE(pods.view().phase, Phase::kStopped);
    pods.standing(pod).set_phase(wire::WORKER_STOPPED);
    pods.say(pod);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  EXPECT_EQ(pods.view().failure_count, 0u);
}

TEST(JobRestart, ItEndsWhenEachProgramHas) {
  Programs pods(2);
  pods.start(2);
  for (const int pod : {1, 0}) {
    EXPECT_NE(pods.view().end, Phase::kFinished);
    pods.standing(pod).set_phase(wire::WORKER_FINISHED);
    pods.say(pod);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
}

TEST(JobRestart, WhatAProgramTellsIsShownAndWhatItDoesAgainIsCounted) {
  Programs pods(2);
  pods.start(2);
  const auto tell = [&](std::uint64_t seq, std::uint64_t step) {
    pods.standing(0).set_seq(seq);
    pods.standing(0).set_step(step);
    pods.standing(0).set_tokens(100 * step);
    pods.say(0);
  };
  tell(2, 30);
  EXPECT_EQ(pods.view().step, 30u);
  EXPECT_EQ(pods.view().tokens, 3000u);
  pods.fail(1);
  pods.after(1s);
  pods.standing(0).set_step(0);
  pods.settle();
  pods.run_on();
  EXPECT_EQ(pods.view().step, 30u) << "not told yet";
  tell(2, 26);
  EXPECT_EQ(pods.view().step, 26u);
  EXPECT_EQ(pods.view().recomputed_steps, 4u);
  tell(3, 31);
  EXPECT_EQ(pods.view().recomputed_steps, 4u);
}

TEST(JobRestart, ANewLeaderLeavesProgramsAlone) {
  Programs pods(2);
  pods.start(2);
  Record record = pods.machine.record();
  ++record.leader;
  Programs later(2);
  later.machine = JobMachine(Timing{}, later.wish, record, later.now);
  later.standings = pods.standings;
  later.connect_all();
  later.after(10s);
  EXPECT_EQ(later.view().phase, Phase::kTraining);
  EXPECT_EQ(later.view().generation, 1u);
  EXPECT_EQ(later.last(0, kAbort), nullptr);
}

}  // namespace
}  // namespace rubato::coordinator
