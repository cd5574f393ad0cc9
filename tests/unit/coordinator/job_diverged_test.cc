// JobMachine: members that held different states; and nodes where that, or the loss of a device,
// happens again.
#include "tests/unit/coordinator/fake_pods.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr const char* kDigests = "the state is 0011 at a, but 0022 at b";

// What the worker of `pod` says after a round in which `ranks` held other states than the majority.
// `drops`: it is one of them.
void refuse_round(FakePods& pods, int pod, const std::vector<std::uint32_t>& ranks, bool drops,
                  bool adds_wrongly = false) {
  const wire::WorkerStanding before = pods.standing(pod);
  if (drops) {
    pods.standing(pod).set_has_state(false);
    pods.standing(pod).set_phase(wire::WORKER_READY);
    pods.standing(pod).clear_held();
  }
  pods.say(pod, [&](wire::WorkerEvent& event) {
    wire::Committed& news = *event.mutable_committed();
    news.set_generation(before.generation());
    news.mutable_record()->set_seq(before.seq());
    news.mutable_record()->set_step(before.step());
    news.mutable_record()->set_outcome(wire::OUTCOME_DIVERGED);
    for (const std::uint32_t rank : ranks) news.mutable_record()->add_diverged(rank);
    news.mutable_record()->set_adds_wrongly(adds_wrongly);
    news.set_difference(kDigests);
  });
  pods.say(pod, [&](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("Diverged");
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
}

void hold(FakePods& pods, int pod, std::uint32_t begin, std::uint32_t end) {
  wire::Range& range = *pods.standing(pod).add_held();
  range.set_begin(begin);
  range.set_end(end);
}

TEST(JobMachineDiverged, TheMinorityBeginsAnewAndTheMajorityGoesOnWithWhatItHas) {
  FakePods pods(4);
  pods.start_training();
  for (int i = 0; i < 4; ++i) {
    hold(pods, i, static_cast<std::uint32_t>(2 * i), static_cast<std::uint32_t>(2 * i + 2));
    pods.say(i);
  }
  pods.clear();
  for (const int pod : {2, 0, 1, 3}) refuse_round(pods, pod, {1}, pod == 1);
  EXPECT_TRUE(pods.was_restarted(1));
  for (const int pod : {0, 2, 3}) EXPECT_FALSE(pods.was_restarted(pod));
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  ASSERT_EQ(pods.machine.record().members.size(), 3u);
  ASSERT_NE(pods.last(0, kForm), nullptr);
  const wire::Form& form = pods.last(0, kForm)->form();
  EXPECT_EQ(form.mode(), wire::FORM_RECOVER);
  ASSERT_EQ(form.shares_size(), 3);
  EXPECT_EQ(form.shares(0).ranges(0).begin(), 0u);  // what it held itself
  EXPECT_NE(pods.view().diverged.find("pods gpt-1 on node n1 held another state than pods gpt-0"),
            std::string::npos);
  EXPECT_NE(pods.view().diverged.find(kDigests), std::string::npos);
  EXPECT_TRUE(pods.view().refused.empty()) << "once may be an accident";
  ASSERT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().failures[0].reason, "Diverged");
  EXPECT_EQ(pods.view().failure_count, 0u);  // no fault of the job's
  pods.commit_all();
  EXPECT_EQ(pods.view().changes.back().salvaged, 6u);
}

TEST(JobMachineDiverged, WhoAddsWronglyIsLeftOutAlike) {
  FakePods pods(2);
  pods.start_training();
  for (const int pod : {1, 0}) refuse_round(pods, pod, {1}, pod == 1, true);
  EXPECT_TRUE(pods.was_restarted(1));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_NE(pods.view().diverged.find("pods gpt-1 on node n1 added otherwise than pods gpt-0"),
            std::string::npos)
      << pods.view().diverged;
}

TEST(JobMachineDiverged, StatesAreComparedBeforeACheckpointWhereAllBuildsKnowHow) {
  for (const bool all_know : {true, false}) {
    FakePods pods(3);
    for (const int pod : {0, 1, 2}) pods.standing(pod).set_compares_states(all_know || pod != 1);
    pods.start_training();
    ASSERT_NE(pods.last(0, kForm), nullptr);
    EXPECT_EQ(pods.last(0, kForm)->form().compare_states(), all_know);
  }
}

TEST(JobMachineDiverged, GradientsGoByWhatAllMembersOfferAlike) {
  for (const std::string other : {"nccl-2.28.9", "nccl-2.29.2", ""}) {
    FakePods pods(3);
    for (const int pod : {0, 1, 2})
      pods.standing(pod).set_collective(pod == 1 ? other : "nccl-2.28.9");
    pods.start_training();
    ASSERT_NE(pods.last(0, kForm), nullptr);
    EXPECT_EQ(pods.last(0, kForm)->form().collective(), other == "nccl-2.28.9" ? other : "");
  }
}

TEST(JobMachineDiverged, WhoIsDroppedIsNobodyUntilItHasBegunAnew) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  refuse_round(pods, 0, {1}, false);
  // Its own word is late, or lost: what it says still names the state.
  pods.after(1s);
  pods.settle();
  pods.after(1s);
  ASSERT_TRUE(pods.standing(1).has_state());
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.last(1, kFollow), nullptr);
  EXPECT_EQ(pods.last(1, kForm), nullptr);
  // The others die: it is not asked even now.
  pods.clear();
  for (const int pod : {0, 2}) pods.begin_anew(pod);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.last(1, kForm), nullptr);
  pods.begin_anew(1);
  pods.after(1s);
  pods.settle();
  ASSERT_NE(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.last(1, kForm)->form().mode(), wire::FORM_START);
}

TEST(JobMachineDiverged, TheRestartIsSaidAgainOverANewConnection) {
  FakePods pods(3);
  pods.start_training();
  refuse_round(pods, 0, {1}, false);
  pods.disconnect(1);
  pods.settle();
  pods.clear();
  pods.connect(1);
  EXPECT_TRUE(pods.was_restarted(1));
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  pods.clear();
  pods.begin_anew(1);
  pods.after(1s);
  EXPECT_FALSE(pods.was_restarted(1));
  EXPECT_NE(pods.last(1, kFollow), nullptr);
}

TEST(JobMachineDiverged, WithoutAMajorityAllBeginAnewFromTheNewestCheckpoint) {
  FakePods pods(5, {}, 4);
  pods.start_first(4);
  pods.commit_all();
  pods.settle();
  pods.connect(4);
  pods.make_ready(4);
  pods.settle();
  ASSERT_NE(pods.last(4, kFollow), nullptr);
  pods.standing(4).set_phase(wire::WORKER_FOLLOWING);  // it has a state of who knows whose
  pods.standing(4).set_has_state(true);
  pods.say(4);
  pods.clear();
  refuse_round(pods, 3, {0, 1, 2, 3}, true);
  pods.settle();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(pods.was_restarted(i)) << i;
    EXPECT_EQ(pods.last(i, kForm), nullptr);
  }
  EXPECT_NE(pods.view().diverged.find("no majority"), std::string::npos);
  for (int i = 0; i < 5; ++i) {
    pods.begin_anew(i);
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(0);
    pods.say(i);
  }
  pods.after(1s);
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_START);
  EXPECT_TRUE(pods.last(0, kForm)->form().from_checkpoint());
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// A script that gives each worker another state would be begun anew for ever.
TEST(JobMachineDiverged, WithoutAMajorityTimeAndAgainTheJobEnds) {
  for (const bool has_progress : {false, true}) {
    FakePods pods(2);
    pods.start_training();
    for (std::size_t time = 1; time <= kUndecidedMost; ++time) {
      ASSERT_EQ(pods.view().failure_reason, "");
      pods.commit_all();
      for (const int pod : {0, 1}) refuse_round(pods, pod, {0, 1}, true);
      pods.settle();
      if (time == kUndecidedMost) break;
      for (const int pod : {0, 1}) pods.begin_anew(pod, has_progress ? time : 0);
      pods.after(1s);
      pods.settle();
      pods.commit_all();
      ASSERT_EQ(pods.view().phase, Phase::kTraining) << time;
    }
    EXPECT_EQ(pods.view().failure_reason, has_progress ? "" : "Diverged");
    EXPECT_EQ(pods.view().end == Phase::kFailed, !has_progress);
  }
}

// Whose state was dropped begins anew, follows the others and trains with them again.
void join_again(FakePods& pods, int pod) {
  pods.settle();
  pods.clear();  // of orders to its process before
  pods.begin_anew(pod);
  pods.follow(pod);
  pods.catch_up(pod);
  pods.settle();
  pods.commit_all();
  ASSERT_EQ(pods.machine.record().members.size(), 3u);
}

// Time in which no pass comes: agents are heard again at its end.
void sleep_for(FakePods& pods, Duration time) {
  pods.asleep = true;
  pods.now += time;
  pods.beat();
  pods.machine.awake(pods.now, pods.now);
  pods.asleep = false;
  pods.commit_all();
}

TEST(JobMachineDiverged, ANodeOnWhichItHappensTwiceWithinAnHourIsRefused) {
  for (const Duration quiet : {Duration(50min), Duration(70min)}) {
    FakePods pods(3);
    pods.start_training();
    for (const int pod : {0, 1, 2}) refuse_round(pods, pod, {1}, pod == 1);
    EXPECT_TRUE(pods.view().refused.empty());
    join_again(pods, 1);
    if (HasFatalFailure()) return;
    sleep_for(pods, quiet);
    const auto& members = pods.machine.record().members;
    const auto of_n1 = std::ranges::find(members, "n1", &Member::node);
    ASSERT_NE(of_n1, members.end());
    const auto rank = static_cast<std::uint32_t>(of_n1 - members.begin());
    pods.clear();
    for (const int pod : {0, 1, 2}) refuse_round(pods, pod, {rank}, pod == 1);
    pods.settle();
    EXPECT_TRUE(pods.was_restarted(1)) << "it loses its state in any case";
    pods.begin_anew(1);
    pods.after(1s);
    pods.settle();
    EXPECT_EQ(pods.machine.record().members.size(), 2u);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
    if (quiet > kTroubleAgain) {
      EXPECT_TRUE(pods.view().refused.empty());
      EXPECT_NE(pods.last(1, kFollow), nullptr);
      continue;
    }
    ASSERT_EQ(pods.view().refused.size(), 1u) << "so is its next process";
    const Refusal& refusal = pods.view().refused[0];
    EXPECT_EQ(refusal.node, "n1");
    EXPECT_EQ(refusal.reason, "Diverged");
    EXPECT_NE(refusal.message.find(kDigests), std::string::npos) << refusal.message;
    EXPECT_EQ(pods.last(1, kFollow), nullptr);
  }
}

// It says so, and its process ends.
void lose_device(FakePods& pods, int pod) {
  pods.say(pod, [](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason(kDeviceLost);
    event.mutable_failure()->set_message("an illegal memory access");
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
  pods.exit(pod, 75, 0);
}

TEST(JobMachineDeviceLost, EndsAWorkerAndTheSecondTimeWithinAnHourItsNodeIsAvoided) {
  for (const Duration quiet : {Duration(50min), Duration(70min)}) {
    FakePods pods(3);
    pods.start_training();
    lose_device(pods, 1);
    EXPECT_TRUE(pods.view().refused.empty());
    join_again(pods, 1);
    if (HasFatalFailure()) return;
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
    sleep_for(pods, quiet);
    pods.clear();
    lose_device(pods, 1);
    pods.settle();
    pods.begin_anew(1);
    pods.after(1s);
    pods.settle();
    EXPECT_EQ(pods.machine.record().members.size(), 2u);
    EXPECT_EQ(pods.view().phase, Phase::kTraining);
    if (quiet > kTroubleAgain) {
      EXPECT_TRUE(pods.view().refused.empty());
      EXPECT_NE(pods.last(1, kFollow), nullptr);
      continue;
    }
    ASSERT_EQ(pods.view().refused.size(), 1u) << "so is its next process";
    EXPECT_EQ(pods.view().refused[0].node, "n1");
    EXPECT_EQ(pods.view().refused[0].reason, kDeviceLost);
    EXPECT_NE(pods.view().refused[0].message.find("illegal memory access"), std::string::npos);
    EXPECT_EQ(pods.last(1, kFollow), nullptr);
  }
}

// Nobody knows which of the two sides was right: no node is to blame.
TEST(JobMachineDiverged, WithoutAMajorityNoNodeIsRefused) {
  FakePods pods(2);
  pods.start_training();
  for (int time = 0; time < 2; ++time) {
    for (const int pod : {0, 1}) refuse_round(pods, pod, {0, 1}, true);
    pods.settle();
    EXPECT_TRUE(pods.view().refused.empty());
    for (const int pod : {0, 1}) pods.begin_anew(pod);
    pods.after(1s);
    pods.settle();
    pods.commit_all();
  }
}

// ---- States that are parked for a stop have no links to be compared over

// Half of the grace is over, and all stand still; `digests` are those of what they hold.
void park_for_a_stop(FakePods& pods, const std::vector<std::uint64_t>& digests) {
  pods.start_training();
  const int count = static_cast<int>(digests.size());
  for (int i = 0; i < count; ++i) pods.standing(i).set_step_seconds(180);
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 20s;
  });
  for (int i = 0; i < count; ++i) pods.standing(i).set_phase_name("compare");
  pods.clear();
  pods.after(10100ms);
  pods.settle();
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(pods.standing(i).phase(), wire::WORKER_PARKED);
    EXPECT_EQ(pods.count(i, kRequest), 0u) << "nobody writes what is not compared yet";
  }
  for (int i = 0; i < count; ++i) {
    pods.standing(i).set_parked_digest(digests[static_cast<std::size_t>(i)]);
    pods.standing(i).set_phase_name("parked");
    pods.say(i);
  }
}

void stop_all(FakePods& pods, const std::vector<int>& who) {
  for (const int i : who) {
    EXPECT_EQ(pods.count(i, kRequest), 1u) << i;
    pods.standing(i).set_phase(wire::WORKER_STOPPED);
    pods.say(i);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

// 0: of a build before, which says none and is not compared.
TEST(JobMachineDiverged, WhatIsParkedAlikeIsWritten) {
  for (const std::uint64_t third : {7u, 0u}) {
    FakePods pods(3);
    park_for_a_stop(pods, {7, 7, third});
    stop_all(pods, {0, 1, 2});
    EXPECT_EQ(pods.view().diverged, "");
  }
}

TEST(JobMachineDiverged, AMinorityThatIsParkedIsDroppedBeforeAnythingIsWritten) {
  FakePods pods(3);
  park_for_a_stop(pods, {9, 7, 7});
  EXPECT_EQ(pods.count(0, kRequest), 0u);
  pods.settle();
  EXPECT_TRUE(pods.was_restarted(0));
  EXPECT_NE(pods.view().diverged.find("pods gpt-0 on node n0 held another state than pods gpt-1"),
            std::string::npos)
      << pods.view().diverged;
  EXPECT_NE(pods.view().diverged.find("0000000000000009 at gpt-0"), std::string::npos)
      << pods.view().diverged;
  ASSERT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.machine.record().members[0].pod, "gpt-1") << "it writes";
  stop_all(pods, {1, 2});
  EXPECT_EQ(pods.count(0, kRequest), 0u);
}

TEST(JobMachineDiverged, WithoutAMajorityNothingThatIsParkedIsWritten) {
  FakePods pods(2);
  park_for_a_stop(pods, {9, 7});
  pods.settle();
  for (const int i : {0, 1}) EXPECT_EQ(pods.count(i, kRequest), 0u) << i;
  EXPECT_NE(pods.view().diverged.find("no majority"), std::string::npos);
  EXPECT_EQ(pods.view().end, Phase::kStopped) << "behind the checkpoint that there is";
}

TEST(JobMachineDiverged, IsShownForAWhileAndNewsOfAnOldGenerationIsOld) {
  FakePods pods(3);
  pods.start_training();
  const wire::WorkerStanding before = pods.standing(0);
  refuse_round(pods, 0, {1}, false);
  pods.settle();
  pods.commit_all();
  pods.clear();
  pods.say(0, [&](wire::WorkerEvent& event) {
    wire::Committed& news = *event.mutable_committed();
    news.set_generation(before.generation());
    news.mutable_record()->set_outcome(wire::OUTCOME_DIVERGED);
    news.mutable_record()->add_diverged(0);
  });
  pods.settle();
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.view().diverged.empty());
  for (int i = 0; i < 11; ++i) {
    pods.after(1min);
    pods.commit_all();
  }
  EXPECT_TRUE(pods.view().diverged.empty());
}

}  // namespace
}  // namespace rubato::coordinator
