// JobMachine: links that fail between members that live.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

FakePods training(int pods) {
  FakePods out(pods);
  out.change_wish([&](Wish& wish) { wish.micro_batches = 128; });
  out.start_training();
  out.commit_all();
  out.clear();
  return out;
}

std::vector<int> restarted(const FakePods& pods) {
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(pods.standings.size()); ++i)
    if (pods.was_restarted(i)) out.push_back(i);
  return out;
}

std::set<std::string> members(const FakePods& pods) {
  std::set<std::string> out;
  for (const Member& m : pods.machine.record().members) out.insert(m.pod);
  return out;
}

// In steps below the silence deadline.
void train_on(FakePods& pods, Duration time) {
  for (; time > 0s; time -= 2s) {
    pods.now += 2s;
    pods.beat();
    pods.commit_all();
  }
}

// Some suspect, all are asked, and what is left goes on: in one generation, nobody restarted.
void recover_in_one(FakePods& pods, int from, int to) {
  const std::uint64_t before = pods.machine.record().generation;
  pods.break_link(from, to);
  pods.after(kSuspectSettle + 50ms);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.machine.record().generation, before + 1);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(restarted(pods), std::vector<int>{});
  EXPECT_TRUE(pods.view().failures.empty());
}

TEST(JobMachineLinks, AFalseAlarmCostsOneGenerationWithAll) {
  FakePods pods = training(5);
  recover_in_one(pods, 1, 2);
  EXPECT_EQ(pods.machine.record().members.size(), 5u);
}

// An agent may name whomever it likes.
TEST(JobMachineLinks, ALinkToNobodyIsAFalseAlarm) {
  FakePods pods = training(3);
  pods.answers_probes = false;
  const std::uint64_t before = pods.machine.record().generation;
  pods.say(1, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(before);
    event.mutable_suspect()->mutable_peer()->set_pod_uid("nobody");
  });
  pods.after(kSuspectSettle + 50ms);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(pods.last(i, kProbe), nullptr);
    pods.say(i, [&](wire::WorkerEvent& event) {
      event.mutable_reach()->set_generation(before);
      event.mutable_reach()->add_missed()->set_pod_uid("nobody");
    });
  }
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.machine.record().generation, before + 1);
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(restarted(pods), std::vector<int>{});
}

// A switch between racks fails.
TEST(JobMachineLinks, ASplitCostsOneGenerationAndTheLargerPartGoesOn) {
  for (const int larger : {35, 40}) {
    FakePods pods = training(70);
    pods.reaches = [&](int a, int b) { return (a < larger) == (b < larger); };
    recover_in_one(pods, larger - 1, larger);
    const auto left = members(pods);
    EXPECT_EQ(left.size(), static_cast<std::size_t>(larger));
    EXPECT_TRUE(left.contains("gpt-0") && !left.contains("gpt-69"));
    // The others keep their state, are told nothing, and follow when the switch is mended.
    pods.clear();
    train_on(pods, 20s);
    for (int i = larger; i < 70; ++i) {
      EXPECT_TRUE(pods.standing(i).has_state());
      EXPECT_EQ(pods.last(i, kFollow), nullptr);
      EXPECT_NE(pods.last(i, kProbe), nullptr);
    }
    EXPECT_EQ(pods.last(0, kAbort), nullptr);
    pods.reaches = [](int, int) { return true; };
    train_on(pods, 20s);
    for (int i = larger; i < 70; ++i) EXPECT_NE(pods.last(i, kFollow), nullptr) << i;
  }
}

TEST(JobMachineLinks, OneBrokenPairCostsOneMember) {
  FakePods pods = training(6);
  pods.reaches = [](int a, int b) { return !(a + b == 5 && (a == 2 || b == 2)); };
  recover_in_one(pods, 2, 3);
  EXPECT_EQ(members(pods), (std::set<std::string>{"gpt-0", "gpt-1", "gpt-2", "gpt-4", "gpt-5"}));
}

TEST(JobMachineLinks, OfAStarTheCentreWaits) {
  FakePods pods = training(6);
  pods.reaches = [](int a, int b) { return a != 0 && b != 0; };
  recover_in_one(pods, 0, 1);
  EXPECT_EQ(members(pods), (std::set<std::string>{"gpt-1", "gpt-2", "gpt-3", "gpt-4", "gpt-5"}));
}

// What it sends is lost; it hears all.
TEST(JobMachineLinks, ALossOneWayCountsBothWays) {
  FakePods pods = training(5);
  pods.reaches = [](int a, int) { return a != 3; };
  recover_in_one(pods, 4, 3);
  EXPECT_EQ(members(pods), (std::set<std::string>{"gpt-0", "gpt-1", "gpt-2", "gpt-4"}));
}

// Who waits may have decided the open round when its links broke: decided is decided.
TEST(JobMachineLinks, WhatOneWhoWaitsHasDecidedStands) {
  FakePods pods = training(3);
  pods.reaches = [](int a, int b) { return a != 2 && b != 2; };
  const std::uint64_t round = pods.standing(2).seq();
  for (int i = 0; i < 2; ++i) pods.standing(i).set_reduced(true);
  pods.standing(2).mutable_last()->set_seq(round);
  pods.standing(2).set_seq(round + 1);
  for (int i = 0; i < 3; ++i) pods.say(i);
  pods.break_link(0, 2);
  pods.after(kSuspectSettle + 50ms);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  EXPECT_EQ(pods.to_write->previous.size(), 1u);  // for a leader that comes after
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().members_size(), 2);
  EXPECT_EQ(pods.last(0, kForm)->form().base_seq(), round + 1);
  EXPECT_EQ(pods.last(0, kForm)->form().decision().seq(), round);
  EXPECT_EQ(pods.last(2, kForm), nullptr);
  EXPECT_TRUE(pods.machine.record().previous.empty());
}

// Whether it lies, or the others had begun the next reduction when it was decided: it has the
// newest state alone, and goes on without them.
TEST(JobMachineLinks, ARoundThatOnlyOneWhoWaitsKnowsIsItsToGoOnFrom) {
  for (const std::uint64_t ahead : {1u, 1'000'000u}) {
    FakePods pods = training(3);
    pods.reaches = [](int from, int) { return from != 2; };
    pods.break_link(2, 0);
    pods.after(kSuspectSettle + 50ms);
    ASSERT_TRUE(pods.to_write.has_value());
    ASSERT_EQ(pods.to_write->members.size(), 2u);
    const std::uint64_t round = pods.standing(2).seq() + ahead;
    pods.standing(2).set_seq(round);
    pods.standing(2).mutable_last()->set_seq(round - 1);
    pods.settle();
    EXPECT_EQ(members(pods), std::set<std::string>{"gpt-2"}) << ahead;
    EXPECT_EQ(pods.view().end, Phase::kWaiting);
  }
}

TEST(JobMachineLinks, WhoWaitsGoesOnWhenTheOthersAreLost) {
  FakePods pods = training(3);
  pods.reaches = [](int a, int b) { return a != 2 && b != 2; };
  recover_in_one(pods, 0, 2);
  pods.clear();
  for (int i = 0; i < 2; ++i) pods.exit(i, -1, 9);
  pods.settle();
  ASSERT_NE(pods.last(2, kForm), nullptr);
  EXPECT_EQ(pods.last(2, kForm)->form().mode(), wire::FORM_RECOVER);
}

TEST(JobMachineLinks, WhoIsLeftOutAgainAndAgainWaitsLonger) {
  FakePods pods = training(3);
  std::vector<Duration> waits;
  for (int times = 0; times < 3; ++times) {
    pods.reaches = [](int a, int b) { return a != 2 && b != 2; };
    pods.break_link(0, 2);
    pods.after(kSuspectSettle + 50ms);
    pods.settle();
    ASSERT_EQ(pods.machine.record().members.size(), 2u);
    pods.clear();
    pods.reaches = [](int, int) { return true; };
    const MonoTime since = pods.now;
    while (pods.last(2, kFollow) == nullptr && pods.now - since < kLinksRetryMost)
      train_on(pods, 2s);
    ASSERT_NE(pods.last(2, kFollow), nullptr);
    waits.push_back(pods.now - since);
    pods.standing(2).set_phase(wire::WORKER_FOLLOWING);
    pods.standing(2).set_following(pods.last(2, kFollow)->follow().generation());
    pods.standing(2).set_seq(pods.standing(0).seq());
    pods.standing(2).set_caught_up(true);
    pods.say(2);
    pods.settle();
    pods.commit_all();
    ASSERT_EQ(pods.machine.record().members.size(), 3u);
  }
  EXPECT_LE(waits[0], kLinksRetry + 2s);
  EXPECT_GE(waits[1], 2 * kLinksRetry - 2s);
  EXPECT_GE(waits[2], 4 * kLinksRetry - 2s);
}

// Who was left out is known to the leader alone. The next one asks before it lets anybody follow
// who holds a state: what is broken still costs no generation and no step.
TEST(JobMachineLinks, ANewLeaderAsksWhoWasLeftOutBeforeItFollows) {
  FakePods before = training(5);
  const auto broken = [](int a, int b) { return a + b != 5 || (a != 2 && b != 2); };  // 2 and 3
  before.reaches = broken;
  recover_in_one(before, 2, 3);
  ASSERT_FALSE(members(before).contains("gpt-3"));
  Record record = before.machine.record();
  ++record.leader;
  FakePods pods(5, record);
  pods.change_wish([&](Wish& wish) { wish.micro_batches = 128; });
  pods.standings = before.standings;
  pods.reaches = broken;
  pods.connect_all();
  train_on(pods, 60s);
  EXPECT_EQ(pods.last(3, kFollow), nullptr);
  EXPECT_GE(pods.count(3, kProbe), 2u);
  EXPECT_LE(pods.count(3, kProbe), 5u) << "less and less often";
  EXPECT_EQ(pods.machine.record().generation, record.generation);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pods.last(i, kAbort), nullptr) << i;
  EXPECT_EQ(restarted(pods), std::vector<int>{});
  pods.reaches = [](int, int) { return true; };
  train_on(pods, kLinksRetryMost);
  EXPECT_NE(pods.last(3, kFollow), nullptr);
}

// A build before this one answers no probe: it follows all the same, a moment later.
TEST(JobMachineLinks, WhoCannotSayWhomItReachesFollows) {
  FakePods before = training(3);
  before.reaches = [](int a, int b) { return a != 2 && b != 2; };
  recover_in_one(before, 0, 2);
  Record record = before.machine.record();
  ++record.leader;
  FakePods pods(3, record);
  pods.standings = before.standings;
  pods.answers_probes = false;
  pods.connect_all();
  train_on(pods, 4s);
  EXPECT_NE(pods.last(2, kFollow), nullptr);
}

// Workers of the version before do not answer: at first all try again together.
TEST(JobMachineLinks, WithoutAnswersTheOneWithTheMostBrokenLinksIsLeftOut) {
  FakePods pods = training(3);
  pods.answers_probes = false;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(pods.machine.record().members.size(), 3u) << attempt;
    pods.break_link(0, 1);
    pods.break_link(2, 0);
    pods.after(kSuspectSettle + kProbeFloor * (1 << attempt) + kProbeReturn + 400ms);
    pods.settle();
  }
  EXPECT_EQ(members(pods), (std::set<std::string>{"gpt-1", "gpt-2"}));
  EXPECT_EQ(restarted(pods), std::vector<int>{});
}

}  // namespace
}  // namespace rubato::coordinator
