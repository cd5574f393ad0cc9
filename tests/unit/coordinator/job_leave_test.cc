// Members that are told to end: what is saved before the last of them does, and who is asked.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// Their agents got SIGTERM.
void tell_to_end(FakePods& pods, const std::vector<int>& whom, std::uint32_t grace_s) {
  for (const int pod : whom) {
    wire::AgentMessage message;
    message.mutable_leaving()->set_grace_seconds(grace_s);
    pods.machine.message(pods.now, "uid-" + std::to_string(pod), message);
  }
  pods.beat();
}

void give_checkpoints(FakePods& pods) {
  pods.change_wish([](Wish& wish) { wish.training = R"({"checkpoint":{"path":"/ckpt"}})"; });
}

// Steps are committed meanwhile, one in two seconds.
void train_for(FakePods& pods, Duration time) {
  for (const MonoTime end = pods.now + time; pods.now < end;) {
    pods.now += 2s;
    pods.beat();
    pods.commit_all();
    if (pods.to_write) pods.settle();
  }
}

bool is_asked_to_stop(const FakePods& pods, int pod) {
  const wire::WorkerCommand* request = pods.last(pod, kRequest);
  return request != nullptr && request->request().stop() && request->request().checkpoint();
}

TEST(JobMachineLeave, WhereAllAreToldToEndTheyWriteAtOnceAndStopInTime) {
  FakePods pods(2);
  give_checkpoints(pods);
  pods.start_training();
  tell_to_end(pods, {0}, 60);
  EXPECT_EQ(pods.count(0, kRequest) + pods.count(1, kRequest), 0u);  // the other one goes on
  tell_to_end(pods, {1}, 60);
  ASSERT_EQ(pods.count(0, kRequest), 1u);
  EXPECT_TRUE(pods.last(0, kRequest)->request().checkpoint());
  EXPECT_FALSE(pods.last(0, kRequest)->request().stop());
  train_for(pods, 24s);
  EXPECT_EQ(pods.count(0, kRequest) + pods.count(1, kRequest), 1u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  train_for(pods, 8s);
  for (const int pod : {0, 1}) EXPECT_TRUE(is_asked_to_stop(pods, pod));
  pods.change_wish([](Wish&) {});  // which knows nothing of it
  pods.obey_requests();
  pods.commit_all();
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  EXPECT_EQ(pods.view().stop_reason, "all its pods were told to end");
  for (const int pod : {0, 1}) EXPECT_EQ(pods.count(pod, kRetire), 1u);
}

TEST(JobMachineLeave, AParkedJobIsWrittenBeforeAllOfItsPodsEnd) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) { wish.min_workers = 3; });
  give_checkpoints(pods);
  pods.start_training();
  pods.exit(2, -1, 9);
  pods.settle();
  ASSERT_EQ(pods.view().phase, Phase::kParked);
  tell_to_end(pods, {0, 1}, 60);
  pods.after(32s);
  for (const int pod : {0, 1}) {
    ASSERT_TRUE(is_asked_to_stop(pods, pod));
    pods.standing(pod).set_phase(wire::WORKER_STOPPED);
    pods.say(pod);
  }
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
}

TEST(JobMachineLeave, NobodyStopsWhereOneThatStaysHoldsTheState) {
  FakePods pods(3, {}, 2);
  give_checkpoints(pods);
  pods.start_first(2);
  pods.commit_all();
  pods.change_wish([](Wish& wish) { wish.min_workers = 3; });
  pods.connect(2);
  pods.follow(2);
  pods.catch_up(2);
  tell_to_end(pods, {0, 1}, 60);
  pods.after(32s);
  for (const int pod : {0, 1}) EXPECT_FALSE(is_asked_to_stop(pods, pod));
}

TEST(JobMachineLeave, WithoutAPlaceForCheckpointsTheyTrainOn) {
  FakePods pods(2);
  pods.start_training();
  tell_to_end(pods, {0, 1}, 60);
  train_for(pods, 40s);
  EXPECT_EQ(pods.count(0, kRequest), 0u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// What the old leader had asked for is asked for by the next one, in the time that is left.
TEST(JobMachineLeave, ANewLeaderHearsOfThemAndSavesToo) {
  FakePods before(2);
  give_checkpoints(before);
  before.start_training();
  tell_to_end(before, {0, 1}, 60);
  train_for(before, 32s);
  ASSERT_TRUE(is_asked_to_stop(before, 0));
  before.obey_requests();
  before.commit_all();
  Record record = before.machine.record();
  ++record.leader;
  FakePods pods(2, record);
  give_checkpoints(pods);
  pods.now = before.now;
  pods.standings = before.standings;
  pods.connect_all();
  tell_to_end(pods, {0, 1}, 24);
  pods.settle();
  train_for(pods, 14s);
  for (const int pod : {0, 1}) EXPECT_TRUE(is_asked_to_stop(pods, pod));
}

// The members have switched to newcomers that have not heard of the round, and one of these dies.
TEST(JobMachineLeave, LeaversThatAloneKnowARoundAreAskedForIt) {
  FakePods pods(4, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = true; });
  for (const int pod : {2, 3}) pods.connect(pod);
  for (const int pod : {2, 3}) pods.follow(pod);
  for (const int pod : {2, 3}) pods.catch_up(pod);
  ASSERT_TRUE(pods.to_write.has_value());
  pods.swap_done();
  for (const int pod : {0, 1}) {
    wire::WorkerStanding& s = pods.standing(pod);
    s.mutable_last()->set_seq(s.seq());
    s.mutable_last()->set_switch_generation(pods.machine.record().generation);
    s.set_seq(s.seq() + 1);
    s.set_phase(wire::WORKER_STOPPED);
    pods.say(pod);
  }
  const std::uint64_t newest = pods.standing(0).seq();
  pods.clear();
  pods.exit(2, -1, 9);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 1u);
  EXPECT_EQ(pods.to_write->previous.size(), 2u);  // a leader that comes after asks them, too
  pods.settle();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().base_seq(), newest);
}

// Nobody told them to end, and whoever was to replace them does not come.
TEST(JobMachineLeave, LeaversDoNotWaitForEverForTheirReplacements) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = true; });
  train_for(pods, 19min);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().members.size(), 2u);
  train_for(pods, 2min);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kParked);
  EXPECT_EQ(pods.view().members.size(), 1u);
  EXPECT_EQ(pods.count(0, kRetire), 1u);
}

TEST(JobMachineLeave, WhereAllOfThemLeaveTheJobStopsAndBeginsAgain) {
  FakePods pods(3, {}, 2);
  give_checkpoints(pods);
  pods.start_first(2);
  pods.commit_all();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = true; });
  train_for(pods, 21min);
  for (const int pod : {0, 1}) EXPECT_TRUE(is_asked_to_stop(pods, pod));
}

// The drain was called off, and the last step came before the stop.
TEST(JobMachineLeave, AJobThatFinishesBeforeItStopsLetsAllOfItsPodsGo) {
  FakePods pods(2);
  give_checkpoints(pods);
  pods.start_training();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = true; });
  for (int i = 0; i < 700 && !is_asked_to_stop(pods, 0); ++i) train_for(pods, 2s);
  ASSERT_TRUE(is_asked_to_stop(pods, 0));
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = wish.pods[1].leaving = false; });
  for (const int pod : {0, 1}) pods.standing(pod).set_phase(wire::WORKER_FINISHED);
  for (const int pod : {0, 1}) pods.say(pod);
  pods.settle();
  EXPECT_EQ(pods.view().end, Phase::kFinished);
  for (const int pod : {0, 1}) EXPECT_EQ(pods.count(pod, kRetire), 1u);
}

}  // namespace
}  // namespace rubato::coordinator
