// JobMachine: what is on disk is looked at before a start, and told when it is damaged.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr auto kLook = wire::WorkerCommand::kLook;

// Ready, able to look, and not asked yet.
void make_seeing(FakePods& pods, int count) {
  pods.connect_all();
  for (int i = 0; i < count; ++i) {
    pods.standing(i).set_looked(1);
    pods.make_ready(i);
  }
}

void answer(FakePods& pods, int pod, std::uint64_t step, std::uint64_t digest) {
  ASSERT_NE(pods.last(pod, kLook), nullptr);
  wire::WorkerStanding& s = pods.standing(pod);
  s.set_looked(pods.last(pod, kLook)->look().number());
  s.set_has_checkpoint(step > 0);
  s.set_checkpoint_step(step);
  s.set_checkpoint_digest(digest);
  pods.say(pod);
}

// What a worker saw when it was configured may be old: here there was none then.
TEST(JobMachineLook, AStartAsksWhatIsOnDiskNow) {
  FakePods pods(2);
  make_seeing(pods, 2);
  pods.after(1s);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kLook), 1u) << "asked once";
    EXPECT_EQ(pods.last(i, kForm), nullptr);
  }
  answer(pods, 0, 40, 7);
  EXPECT_EQ(pods.last(0, kForm), nullptr);
  answer(pods, 1, 40, 7);
  pods.swap_done();
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(pods.last(i, kForm), nullptr);
    EXPECT_TRUE(pods.last(i, kForm)->form().from_checkpoint());
    EXPECT_EQ(pods.last(i, kForm)->form().checkpoint_step(), 40u);
    EXPECT_EQ(pods.last(i, kForm)->form().members_size(), 2);
  }
  EXPECT_EQ(pods.view().checkpoint_step, 40u);
}

// A connection that was lost takes the question with it.
TEST(JobMachineLook, WhoComesBackIsAskedAgain) {
  FakePods pods(2);
  make_seeing(pods, 2);
  pods.after(1s);
  pods.disconnect(0);
  pods.connect(0);
  pods.after(1s);
  EXPECT_GE(pods.count(0, kLook), 2u);
  EXPECT_EQ(pods.last(0, kForm), nullptr);
}

// Equal steps and other bytes: volumes that differ. Most are right; who reads others follows.
TEST(JobMachineLook, DigestsAreComparedAndNotStepsAlone) {
  FakePods pods(3);
  make_seeing(pods, 3);
  pods.after(1s);
  answer(pods, 0, 40, 8);
  answer(pods, 1, 40, 7);
  answer(pods, 2, 40, 7);
  pods.swap_done();
  ASSERT_NE(pods.last(1, kForm), nullptr);
  const wire::Form& form = pods.last(1, kForm)->form();
  ASSERT_EQ(form.members_size(), 2);
  EXPECT_EQ(form.members(0).id().pod_uid(), "uid-1");
  EXPECT_EQ(form.members(1).id().pod_uid(), "uid-2");
  EXPECT_EQ(pods.view().checkpoint_shared, std::optional(false));
  EXPECT_NE(pods.view().checkpoint_unshared_by.find("gpt-0"), std::string::npos);
}

// The disk of one does not answer: the others begin without it. If none answers, none begins: "no
// checkpoint" would be a guess that starts the job anew.
TEST(JobMachineLook, WithoutAnAnswerNothingIsBegun) {
  FakePods pods(3);
  make_seeing(pods, 3);
  pods.after(60s);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.last(i, kForm), nullptr);
  answer(pods, 1, 40, 7);
  pods.swap_done();
  ASSERT_NE(pods.last(1, kForm), nullptr);
  EXPECT_EQ(pods.last(1, kForm)->form().members_size(), 1);
}

// Workers of the version before look once, when they are configured.
TEST(JobMachineLook, OlderWorkersAreNotAsked) {
  FakePods pods(2);
  pods.connect_all();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(30);
    pods.make_ready(i);
  }
  pods.after(1s);
  pods.swap_done();
  EXPECT_EQ(pods.count(0, kLook), 0u);
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().checkpoint_step(), 30u);
}

TEST(JobMachineLook, DamageAndFailedWritesAreToldUntilOneIsWritten) {
  FakePods pods(2);
  pods.start_training();
  EXPECT_FALSE(pods.view().checkpoint_damaged.has_value());
  pods.say(0, [](wire::WorkerEvent& event) {
    event.mutable_checkpoint_damaged()->set_step(40);
    event.mutable_checkpoint_damaged()->set_path("/c/.damaged-step-00000040-1");
    event.mutable_checkpoint_damaged()->set_why("model.safetensors has another digest");
  });
  for (const char* word : {"step 40", "/c/.damaged-step-00000040-1", "model.safetensors"})
    EXPECT_NE(pods.view().checkpoint_damaged->find(word), std::string::npos) << word;
  pods.say(0, [](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("CheckpointFailed");
    event.mutable_failure()->set_message("no space left");
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
  EXPECT_EQ(pods.view().checkpoint_failing, "no space left");
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  pods.say(0, [](wire::WorkerEvent& event) { event.mutable_checkpoint_written()->set_step(50); });
  EXPECT_EQ(pods.view().checkpoint_damaged, "");
  EXPECT_EQ(pods.view().checkpoint_failing, "");
}

}  // namespace
}  // namespace rubato::coordinator
