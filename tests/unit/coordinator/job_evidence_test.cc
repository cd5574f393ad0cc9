// JobMachine: who lives. What counts as a sign of life, and when the lack of one counts.
#include "operator/coordinator/server.h"
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

bool is_disturbed(const FakePods& pods) {
  return pods.last(0, kAbort) != nullptr || !pods.view().failures.empty();
}

// It is there, its socket too, and says nothing from now on.
void fall_silent(FakePods& pods, int pod) { pods.connected[static_cast<std::size_t>(pod)] = false; }

// What all said while nobody listened is taken down one by one, and then judged.
TEST(JobMachineEvidence, NobodyIsJudgedBeforeAllThatArrivedIsTakenDown) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.asleep = true;
  pods.now += 4s;
  pods.beat();
  pods.asleep = false;
  pods.after(1s);
  EXPECT_FALSE(is_disturbed(pods));
}

TEST(JobMachineEvidence, SilenceIsJudgedUpToWhatIsTakenDown) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.machine.tick(pods.now + 4s, pods.now + 2s);  // a word that came after two seconds waits
  EXPECT_TRUE(pods.view().failures.empty());
  pods.machine.tick(pods.now + 4s, pods.now + 3s);
  EXPECT_EQ(pods.view().failures.size(), 3u);
}

TEST(JobMachineEvidence, AWordCountsFromItsArrival) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  const MonoTime said = pods.now + 1s;
  wire::AgentMessage message;
  *message.mutable_heartbeat()->add_workers() = pods.standing(1);
  pods.machine.message(said, "uid-1", message);  // taken down three seconds later
  pods.machine.tick(said + 3s, said + 2400ms);
  ASSERT_EQ(pods.view().failures.size(), 2u);  // the others were last heard before it
  pods.machine.tick(said + 3s, said + 2500ms);
  ASSERT_EQ(pods.view().failures.size(), 3u);
  EXPECT_EQ(pods.view().failures.back().pod_uid, "uid-1");
}

TEST(JobMachineEvidence, WhoSleptBeginsAllDeadlinesAnew) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.now += 6s;
  pods.machine.awake(pods.now, pods.now);
  pods.disconnect(1);  // it had hung up meanwhile
  pods.after(4900ms);
  EXPECT_FALSE(is_disturbed(pods));
  pods.connect(1);
  pods.after(5s);
  EXPECT_FALSE(is_disturbed(pods));
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineEvidence, WhoDoesNotComeBackAfterASleepIsLost) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.now += 6s;
  pods.machine.awake(pods.now, pods.now);
  pods.disconnect(1);
  fall_silent(pods, 2);
  pods.after(2450ms);
  EXPECT_FALSE(is_disturbed(pods));
  pods.after(100ms);
  ASSERT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().failures[0].pod_uid, "uid-2");
  pods.obey_aborts();
  pods.after(2400ms);
  EXPECT_EQ(pods.view().failures.size(), 1u) << "an agent that hung up needs two tries";
  pods.after(100ms);
  ASSERT_EQ(pods.view().failures.size(), 2u);
  EXPECT_EQ(pods.view().failures[1].pod_uid, "uid-1");
}

// An answer that was due while we slept has come, or is on its way.
TEST(JobMachineEvidence, AnAbortIsAnsweredAfterASleep) {
  FakePods pods(3);
  pods.start_training();
  pods.exit(2, -1, 11);
  pods.swap_done();
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  pods.now += 6s;
  pods.machine.awake(pods.now, pods.now);
  pods.beat();
  EXPECT_FALSE(pods.was_restarted(0) || pods.was_restarted(1));
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
}

// A step needs all: while rounds are committed that began after it fell silent, it lives.
TEST(JobMachineEvidence, ACommittedRoundSpeaksForAllItsMembers) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  fall_silent(pods, 1);
  for (int i = 0; i < 20; ++i) {
    pods.after(500ms);
    pods.commit_all();
  }
  EXPECT_FALSE(is_disturbed(pods));
  pods.after(2400ms);
  EXPECT_FALSE(is_disturbed(pods));
  pods.after(200ms);
  EXPECT_TRUE(is_disturbed(pods)) << "no round came any more";
}

// The round may have had all that it needed of it before.
TEST(JobMachineEvidence, ARoundThatBeganBeforeTheSilenceSaysNothing) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.after(1s);
  fall_silent(pods, 1);
  pods.after(1s);
  pods.commit_all();
  pods.after(1400ms);
  EXPECT_FALSE(is_disturbed(pods));
  pods.after(200ms);
  EXPECT_TRUE(is_disturbed(pods));
}

TEST(JobMachineEvidence, WhoseConnectionEndedLivesWhileRoundsAreCommitted) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.disconnect(1);
  for (int i = 0; i < 50; ++i) {
    pods.after(100ms);
    pods.commit_all();
  }
  EXPECT_FALSE(is_disturbed(pods));
  pods.after(2600ms);
  EXPECT_TRUE(is_disturbed(pods));
}

// An agent needs a word now and then; where there are thousands, each word costs.
TEST(JobMachineEvidence, NotEachHeartbeatIsAnswered) {
  FakePods pods(1);
  pods.connect(0);
  int acks = 0;
  for (int beat = 0; beat < 20; ++beat) {
    pods.now += Timing{}.heartbeat;
    wire::AgentMessage message;
    *message.mutable_heartbeat()->add_workers() = pods.standing(0);
    pods.machine.message(pods.now, "uid-0", message);
    pods.machine.tick(pods.now, pods.now);
    for (const Send& send : pods.machine.take_outputs().sends)
      if (send.message.has_heartbeat_ack()) ++acks;
  }
  EXPECT_GE(acks, 20 * Timing{}.heartbeat / Timing{}.silence);
  EXPECT_LE(acks, 10);
}

TEST(JobMachineEvidence, ManyAgentsBeatLessOftenAndOftenEnough) {
  const Timing timing;
  EXPECT_EQ(heartbeat_period(timing, 1), timing.heartbeat);
  EXPECT_EQ(heartbeat_period(timing, 8000), 400ms);
  EXPECT_EQ(heartbeat_period(timing, 1'000'000), timing.silence / 5);
  Timing slow = timing;
  slow.heartbeat = 2s;
  EXPECT_EQ(heartbeat_period(slow, 8000), 2s);
}

}  // namespace
}  // namespace rubato::coordinator
