// JobMachine: planned changes.
#include "tests/unit/coordinator/fake_pods.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// It gets no link to its donor, or that breaks.
void lose_donor(FakePods& pods, int pod) {
  const wire::Follow follow = pods.last(pod, kFollow)->follow();
  pods.standing(pod).set_phase(wire::WORKER_READY);
  pods.standing(pod).clear_following();
  pods.say(pod, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(follow.generation());
    *event.mutable_suspect()->mutable_peer() = follow.donor();
    event.mutable_suspect()->set_why("no answer");
  });
}

void join(FakePods& pods, int pod) {
  pods.follow(pod);
  pods.catch_up(pod);
}

TEST(JobMachineChange, ANewcomerFollowsAndAllSwitch) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  join(pods, 2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->phase, "Switching");
  EXPECT_EQ(pods.to_write->members.size(), 3u);
  EXPECT_EQ(pods.to_write->previous.size(), 2u);
  pods.swap_done();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(pods.last(i, kForm)->form().mode(), wire::FORM_PLANNED) << i;
  EXPECT_EQ(pods.view().phase, Phase::kSwitching);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_TRUE(pods.machine.record().previous.empty());
}

// All state went with its donor, and it never heard of it: it waits for a process that is gone.
TEST(JobMachineChange, WhoseDonorIsGoneIsToldToFollowAnother) {
  FakePods pods(2, {}, 1);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.start_first(1);
  pods.commit_all();
  pods.standing(1).set_looked(1);
  pods.connect(1);
  pods.follow(1);
  pods.clear();
  pods.begin_anew(0);
  pods.settle();
  pods.after(20s);  // it is dialing, and answers no Look
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().members.size(), 1u);
  ASSERT_NE(pods.last(1, kFollow), nullptr);
  EXPECT_EQ(pods.last(1, kFollow)->follow().donor().incarnation(), 2u);
  EXPECT_EQ(pods.last(1, kFollow)->follow().generation(), pods.machine.record().generation);
}

// A leader before this one sent it an Abort for a generation that it could not write any more.
TEST(JobMachineChange, AllRiseToAGenerationThatANewcomerDoesNotRefuse) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.standing(2).set_fenced_below(5);
  pods.connect(2);
  pods.make_ready(2);
  EXPECT_EQ(pods.last(2, kFollow), nullptr) << "it would refuse generation 1";
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->phase, "Switching");
  EXPECT_EQ(pods.to_write->generation, 6u);
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  pods.settle();
  EXPECT_EQ(pods.machine.record().rescales, 0u);
  pods.follow(2);
  EXPECT_EQ(pods.last(2, kFollow)->follow().generation(), 6u);
  pods.catch_up(2);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineChange, ARescaleIsOnRecordWhenItIsDecidedAndCountedWhenItHasEnded) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  EXPECT_EQ(pods.machine.record().rescales, 0u);  // a start is none
  pods.connect(2);
  join(pods, 2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->rescales, 1u);
  const JobMachine next_leader(Timing{}, pods.wish, *pods.to_write, pods.now);
  EXPECT_EQ(next_leader.view().rescales, 1u);
  pods.settle();
  EXPECT_EQ(pods.view().rescales, 0u);
  pods.commit_all();
  EXPECT_EQ(pods.view().rescales, 1u);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 200; });
  pods.settle();
  EXPECT_EQ(pods.machine.record().stop_steps, 200u);
  EXPECT_EQ(pods.machine.record().rescales, 1u);
}

TEST(JobMachineChange, ANewcomerThatDoesNotCatchUpIsRestartedOnce) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.make_ready(2);
  ASSERT_NE(pods.last(2, kFollow), nullptr);
  for (int i = 0; i < 42; ++i) {  // beyond follow_deadline
    pods.commit_all();
    pods.after(15s);
  }
  EXPECT_TRUE(pods.was_restarted(2));
  EXPECT_EQ(pods.view().failures.size(), 1u);  // however long its end is on the way
  EXPECT_EQ(pods.view().failure_count, 0u) << "who trains misses nothing";
}

// Ten minutes are no time for a large state on a slow link.
TEST(JobMachineChange, ANewcomerToWhomBytesComeIsLeftToFollow) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.follow(2);
  for (int i = 0; i < 82; ++i) {  // beyond twice follow_deadline
    pods.standing(2).set_micro_done(pods.standing(2).micro_done() + 1);
    pods.commit_all();
    pods.after(15s);
  }
  EXPECT_FALSE(pods.was_restarted(2));
  EXPECT_TRUE(pods.view().failures.empty());
}

// Its donor cuts it off each time, for what waits for it is too much.
TEST(JobMachineChange, WhoNeverCatchesUpIsGivenBack) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  for (int times = 0; times < 2 * kFollowsInVain; ++times) {
    pods.follow(2);
    pods.after(1s);
    pods.make_ready(2);  // turned away at once
  }
  for (int times = 0; times < kFollowsInVain; ++times) {
    EXPECT_TRUE(pods.view().refused.empty()) << times;
    pods.follow(2);
    for (Duration waited{}; waited < kFollowLong; waited += 15s) {
      pods.commit_all();
      pods.after(15s);
    }
    pods.make_ready(2);
  }
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].reason, "TooSlow");
  EXPECT_EQ(pods.view().refused[0].pod, "gpt-2");
  EXPECT_EQ(pods.view().failure_count, 0u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

constexpr auto kDial = 11s;  // of a follower, as long as nobody answers

TEST(JobMachineChange, WhoReachesNoMemberIsGivenBack) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  std::set<std::string> donors;
  for (Duration waited{}; waited < kFollowLong + kDial; waited += kDial) {
    EXPECT_TRUE(pods.view().refused.empty()) << "it may be a matter of a moment";
    pods.follow(2);
    donors.insert(pods.last(2, kFollow)->follow().donor().pod_uid());
    pods.commit_all();
    pods.after(kDial);
    lose_donor(pods, 2);
  }
  EXPECT_EQ(donors.size(), 2u) << "a member that it does not reach is no reason to try no other";
  ASSERT_EQ(pods.view().refused.size(), 1u);
  EXPECT_EQ(pods.view().refused[0].reason, "Unreachable");
  EXPECT_NE(pods.view().refused[0].message.find("no answer"), std::string::npos);
  EXPECT_EQ(pods.view().failure_count, 0u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineChange, WhoWasTurnedAwayByABusyDonorHasReachedIt) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  for (int times = 0; times < 4 * kDonorsLost; ++times) {
    pods.follow(2);
    pods.commit_all();
    pods.after(kDial);
    if (times % 2 == 0)
      lose_donor(pods, 2);
    else
      pods.make_ready(2);
  }
  EXPECT_TRUE(pods.view().refused.empty());
}

TEST(JobMachineChange, WhoIsCutOffByMembersThatMoveIsNotGivenBack) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  const auto lose_when = [&](const std::function<void(std::uint64_t)>& moves) {
    for (std::uint64_t times = 0; times < 3 * kDonorsLost; ++times) {
      pods.follow(2);
      pods.commit_all();
      pods.after(kDial);
      moves(times);
      lose_donor(pods, 2);
      pods.settle();
    }
    EXPECT_TRUE(pods.view().refused.empty());
  };
  lose_when([&](std::uint64_t times) {
    pods.change_wish([&](Wish& wish) { wish.stop_steps = 1000 + times; });
    ASSERT_TRUE(pods.to_write.has_value());
  });
  // Its donors are about to leave, and wait for it.
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = true; });
  lose_when([](std::uint64_t) {});
}

// Its donor goes on sending it rounds: another Follow would wait for the end of this one.
TEST(JobMachineChange, WhoFollowsWhileOthersSwitchFollowsOn) {
  FakePods pods(4, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.connect(3);
  pods.follow(3);
  join(pods, 2);
  pods.after(1s);  // 3 is not waited for
  ASSERT_TRUE(pods.to_write.has_value());
  pods.clear();
  pods.settle();
  ASSERT_EQ(pods.machine.record().members.size(), 3u);
  pods.commit_all();
  EXPECT_EQ(pods.last(3, kFollow), nullptr);
  pods.catch_up(3);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 4u);
}

// All members are lost before the switch. Of two who followed them the one who was to join lacks
// the last round, and the other one has it.
TEST(JobMachineChange, WhoFollowedFurtherThanANewcomerHasTheState) {
  FakePods pods(4, {}, 2);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.connect(3);
  pods.follow(3);
  join(pods, 2);
  pods.after(1s);  // 3 is not waited for
  ASSERT_TRUE(pods.to_write.has_value());
  pods.swap_done();
  pods.commit_all();
  pods.catch_up(3);
  const std::uint64_t newest = pods.standing(3).seq();
  ASSERT_EQ(pods.standing(2).seq() + 1, newest);
  *pods.standing(3).mutable_last() = pods.standing(0).last();
  pods.say(3);
  pods.clear();
  for (const int lost : {0, 1}) pods.disconnect(lost);
  pods.after(300ms);
  pods.settle();
  ASSERT_NE(pods.last(3, kForm), nullptr);
  EXPECT_EQ(pods.last(3, kForm)->form().mode(), wire::FORM_RECOVER);
  EXPECT_EQ(pods.last(3, kForm)->form().base_seq(), newest);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineChange, WhoLosesItsDonorFollowsAnew) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.connect(2);
  pods.follow(2);
  pods.clear();
  pods.standing(2).set_phase(wire::WORKER_READY);
  pods.standing(2).clear_following();
  pods.say(2, [](wire::WorkerEvent& event) { event.mutable_suspect()->set_generation(1); });
  EXPECT_NE(pods.last(2, kFollow), nullptr);
}

// A donor serves four at once.
TEST(JobMachineChange, EightNewcomersAtOnceShareTheDonors) {
  for (const bool one_by_one : {false, true}) {
    FakePods pods(10, {}, 2);
    pods.change_wish([](Wish& wish) { wish.micro_batches = 16; });
    pods.start_first(2);
    pods.commit_all();
    for (int i = 2; i < 10; ++i) pods.connect(i);
    for (int i = 2; i < 10; ++i) {
      pods.make_ready(i);
      if (one_by_one) pods.after(100ms);
    }
    std::map<std::string, int> load;
    for (int i = 2; i < 10; ++i) {
      ASSERT_NE(pods.last(i, kFollow), nullptr) << i;
      ++load[pods.last(i, kFollow)->follow().donor().pod_uid()];
    }
    EXPECT_EQ(load, (std::map<std::string, int>{{"uid-0", 4}, {"uid-1", 4}}));
    // All of them join, four that were told later included.
    for (int i = 2; i < 10; ++i) {
      pods.standing(i).set_phase(wire::WORKER_FOLLOWING);
      pods.standing(i).set_following(pods.last(i, kFollow)->follow().generation());
      pods.say(i);
      pods.catch_up(i);
    }
    pods.after(1s);
    pods.settle();
    pods.after(1s);
    pods.settle();
    EXPECT_EQ(pods.machine.record().members.size(), 10u);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
  }
}

// It was turned away, and is ready again: the next donor is one that has fewer.
TEST(JobMachineChange, WhoIsTurnedAwayByABusyDonorGetsAnother) {
  FakePods pods(4, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.connect(3);
  pods.follow(2);
  pods.follow(3);
  const std::string busy = pods.last(3, kFollow)->follow().donor().pod_uid();
  join(pods, 2);
  pods.after(1s);  // 3 is not waited for
  pods.settle();
  ASSERT_EQ(pods.machine.record().members.size(), 3u);
  pods.clear();
  pods.standing(3).set_phase(wire::WORKER_READY);
  pods.standing(3).clear_following();
  pods.say(3);
  ASSERT_NE(pods.last(3, kFollow), nullptr);
  EXPECT_NE(pods.last(3, kFollow)->follow().donor().pod_uid(), busy);
  pods.after(1s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  EXPECT_EQ(pods.count(3, kFollow), 1u);
}

TEST(JobMachineChange, AFollowersSuspicionOfItsDonorAbortsNoJoin) {
  FakePods pods(4, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  pods.connect(3);
  pods.follow(3);
  join(pods, 2);
  pods.after(1s);  // 3 is not waited for
  ASSERT_EQ(pods.view().phase, Phase::kSwitching);
  pods.swap_done();
  pods.clear();
  pods.standing(3).set_phase(wire::WORKER_READY);
  pods.standing(3).clear_following();
  pods.say(3, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(pods.machine.record().generation);
    event.mutable_suspect()->mutable_peer()->set_pod_uid("uid-0");
  });
  pods.after(1s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  EXPECT_EQ(pods.view().phase, Phase::kSwitching);
}

TEST(JobMachineChange, AJoinerThatLosesItsDonorAbortsTheJoin) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  join(pods, 2);
  pods.swap_done();
  pods.clear();
  pods.standing(2).set_phase(wire::WORKER_ABORTED);
  pods.standing(2).clear_following();
  pods.say(2);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineChange, AWorkerThatDoesNotGetReadyIsRestarted) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.connect(2);
  for (Duration waited{}; waited + 15s < Timing{}.start_deadline; waited += 15s) {
    pods.commit_all();
    pods.after(15s);
  }
  EXPECT_FALSE(pods.was_restarted(2));
  pods.commit_all();
  pods.after(15s);
  EXPECT_TRUE(pods.was_restarted(2));
  EXPECT_EQ(pods.view().failure_count, 1u);
}

TEST(JobMachineChange, ANewcomerThatDiesBeforeTheSwitchIsLeftBehind) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.connect(2);
  join(pods, 2);
  pods.swap_done();
  pods.clear();
  pods.exit(2, -1, 9);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().rescales, 1u);  // what did not come about is not counted
}

TEST(JobMachineChange, AChangeThatAnotherFollowsBeforeItsFirstStepIsToldToo) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  join(pods, 2);
  pods.swap_done();
  pods.settle();
  pods.exit(2, -1, 9);
  pods.settle();
  pods.commit_all();
  const auto& changes = pods.view().changes;
  ASSERT_GE(changes.size(), 2u);
  EXPECT_EQ(changes[changes.size() - 2].kind, "join");
  EXPECT_EQ(changes.back().kind, "recover");
}

TEST(JobMachineChange, ALeaverIsRetiredAfterTheSwitch) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = true; });
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  EXPECT_EQ(pods.last(0, kRetire), nullptr);
  EXPECT_TRUE(pods.view().shrinks);
  pods.settle();
  EXPECT_FALSE(pods.view().shrinks);
  EXPECT_EQ(pods.count(0, kRetire), 1u);
  pods.exit(0, 0, 0);
  EXPECT_EQ(pods.view().retired_pods, std::vector<std::string>{"gpt-0"});
  EXPECT_EQ(pods.view().failure_count, 0u);
}

// Its pod was not told to end: without it the others would pause.
TEST(JobMachineChange, WhereOthersAreTooFewALeaverStaysUntilItsReplacementJoins) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = true; });
  pods.after(2s);
  EXPECT_FALSE(pods.to_write.has_value());
  EXPECT_EQ(pods.last(1, kAbort), nullptr);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  pods.connect(2);
  join(pods, 2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.count(0, kRetire), 1u);
}

// All members leave at once, and the newcomers, pods 2 and 3, still fetch the last round.
void leave_all_at_once(FakePods& pods) {
  pods.start_first(2);
  pods.commit_all();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = true; });
  for (const int pod : {2, 3}) pods.connect(pod);
  for (const int pod : {2, 3}) join(pods, pod);
  ASSERT_TRUE(pods.to_write.has_value());
  ASSERT_EQ(pods.to_write->members.size(), 2u);
  pods.swap_done();
  for (const int pod : {0, 1}) {
    wire::WorkerStanding& s = pods.standing(pod);
    s.mutable_last()->set_seq(s.seq());
    s.mutable_last()->set_switch_generation(pods.machine.record().generation);
    s.set_seq(s.seq() + 1);
    s.set_step(s.step() + 1);
    s.set_phase(wire::WORKER_STOPPED);
    pods.say(pod);
  }
}

// Who has left at the switch has not stopped, and has written no checkpoint.
TEST(JobMachineChange, AStopThatMeetsAMoveOfAllPodsWaitsForItsCheckpoint) {
  FakePods pods(4, {}, 2);
  leave_all_at_once(pods);
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.stop_reason = "suspended";
  });
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  for (const int pod : {2, 3}) {
    EXPECT_EQ(pods.last(pod, kRetire), nullptr);
    pods.standing(pod).set_seq(pods.standing(0).seq());
    pods.standing(pod).set_step(pods.standing(0).step());
  }
  pods.settle();  // they stand in the new generation
  EXPECT_EQ(pods.view().end, Phase::kWaiting);
  for (const int pod : {2, 3}) {
    ASSERT_EQ(pods.count(pod, kRequest), 1u);
    EXPECT_TRUE(pods.last(pod, kRequest)->request().checkpoint());
  }
  pods.obey_requests();
  pods.commit_all();
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

// One of the newcomers hangs, and the other cannot stop without it: from half of the grace on it is
// left out, and what the other holds is written.
TEST(JobMachineChange, AStopThatMeetsAMoveOfAllPodsGoesOnWithoutWhoHangs) {
  FakePods pods(4, {}, 2);
  leave_all_at_once(pods);
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  pods.standing(3).set_seq(pods.standing(0).seq());
  pods.standing(3).set_step(pods.standing(0).step());
  pods.deaf = 2;
  pods.obey_forms();
  pods.clear();
  const Duration half = pods.wish.grace / 2;
  pods.after(half - 100ms);
  EXPECT_EQ(pods.last(3, kAbort), nullptr);
  pods.after(200ms);
  ASSERT_NE(pods.last(3, kAbort), nullptr);
  pods.swap_done();
  for (const int pod : {0, 1, 3}) pods.answer_abort(pod);
  pods.after(5s);
  EXPECT_TRUE(pods.was_restarted(2));
  pods.swap_done();
  for (const int pod : {0, 1, 3}) pods.answer_abort(pod);
  ASSERT_NE(pods.last(3, kForm), nullptr);
  EXPECT_TRUE(pods.last(3, kForm)->form().parked());
  EXPECT_EQ(pods.last(3, kForm)->form().members_size(), 1);
  EXPECT_EQ(pods.last(3, kForm)->form().base_seq(), pods.standing(0).seq()) << "a step is lost";
  pods.obey_forms();
  ASSERT_NE(pods.last(3, kRequest), nullptr);
  EXPECT_TRUE(pods.last(3, kRequest)->request().checkpoint());
  if (pods.to_write) pods.swap_done();
  pods.standing(3).set_phase(wire::WORKER_STOPPED);
  pods.say(3);
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineChange, APlannedChangeThatTakesTooLongIsGivenUp) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods[2].leaving = true; });
  pods.swap_done();
  pods.after(9s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(3s);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineChange, NewStopStepsReachAllAtOneCommit) {
  FakePods pods(2);
  pods.wish.stop_steps = 100;
  pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
  pods.start_training();
  EXPECT_EQ(pods.last(0, kForm)->form().stop_steps(), 100u);
  EXPECT_EQ(pods.machine.record().stop_steps, 100u);
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.stop_steps = 200; });
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->stop_steps, 200u);
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);  // nobody comes or goes
  pods.swap_done();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.last(i, kForm)->form().mode(), wire::FORM_PLANNED);
    EXPECT_EQ(pods.last(i, kForm)->form().stop_steps(), 200u);
  }
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().changes.back().kind, "settings");
  pods.clear();
  pods.after(3s);
  EXPECT_EQ(pods.last(0, kForm), nullptr);  // once
}

// The last step is committed, and its checkpoint is tried again and again.
TEST(JobMachineChange, AStopThatIsRaisedBehindTheLastStepIsTakenUpByARecovery) {
  for (const bool was_planned : {false, true}) {  // before the last step, and no commit took it up
    FakePods pods(2);
    pods.wish.stop_steps = 3;
    pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
    pods.start_training();
    pods.commit_all();
    const auto raise = [](Wish& wish) { wish.stop_steps = 5; };
    if (was_planned) pods.change_wish(raise);
    if (was_planned) pods.swap_done();
    pods.commit_all();
    ASSERT_EQ(pods.view().step, 3u);
    pods.standing(0).set_phase_name("checkpoint");
    pods.say(0);
    pods.standing(1).set_phase(wire::WORKER_FINISHED);
    pods.say(1);
    pods.clear();
    if (!was_planned) pods.change_wish(raise);
    if (was_planned) {
      pods.standing(0).set_phase(wire::WORKER_FINISHED);
      pods.say(0);
      EXPECT_EQ(pods.view().end, Phase::kWaiting);
      pods.after(11s);
    }
    pods.settle();
    for (int i = 0; i < 2; ++i) {
      ASSERT_NE(pods.last(i, kForm), nullptr);
      EXPECT_EQ(pods.last(i, kForm)->form().mode(), wire::FORM_RECOVER);
      EXPECT_EQ(pods.last(i, kForm)->form().stop_steps(), 5u);
      EXPECT_EQ(pods.last(i, kForm)->form().base_seq(), 3u) << "nothing is lost";
    }
    EXPECT_EQ(pods.machine.record().members.size(), 2u);
    pods.commit_all();
    EXPECT_EQ(pods.view().step, 4u);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
    EXPECT_FALSE(pods.was_restarted(0) || pods.was_restarted(1));
  }
}

// It is suspended as well: the checkpoint stands, and whoever resumes it goes on to the new stop.
TEST(JobMachineChange, AStoppedJobWhoseStopWasRaisedIsNotFinished) {
  FakePods pods(2);
  pods.wish.stop_steps = 2;
  pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
  pods.start_training();
  pods.commit_all();
  pods.change_wish([](Wish& wish) {
    wish.stop_steps = 5;
    wish.stop = true;
  });
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineChange, AStopThatIsRaisedWhenTheEndIsDecidedChangesNothing) {
  FakePods pods(2);
  pods.wish.stop_steps = 2;
  pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
  pods.start_training();
  pods.commit_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.change_wish([](Wish& wish) { wish.stop_steps = 5; });
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
  EXPECT_EQ(pods.machine.record().phase, "Finished");
}

TEST(JobMachineChange, NewStopStepsOfAParkedJobComeWithItsNextGeneration) {
  FakePods pods(2);
  pods.wish.stop_steps = 100;
  pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
  pods.start_training();
  pods.exit(1, -1, 9);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kParked);
  pods.change_wish([](Wish& wish) { wish.stop_steps = 200; });
  EXPECT_FALSE(pods.to_write.has_value());  // nothing happens for it alone
  pods.standing(1).mutable_id()->set_incarnation(2);
  pods.standing(1).set_phase(wire::WORKER_STARTING);
  pods.standing(1).set_generation(0);
  pods.standing(1).set_has_state(false);
  pods.standing(1).set_fenced_below(0);
  pods.clear();
  pods.say(1);
  join(pods, 1);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pods.last(i, kForm)->form().stop_steps(), 200u);
}

}  // namespace
}  // namespace rubato::coordinator
