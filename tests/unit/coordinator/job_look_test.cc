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

// The record was read anew in between, by the same leader.
TEST(JobMachineLook, AnAnswerOfLongAgoIsNone) {
  FakePods pods(2);
  make_seeing(pods, 2);
  pods.after(1s);
  answer(pods, 0, 40, 7);
  answer(pods, 1, 40, 7);
  FakePods anew(2);
  anew.connect_all();
  for (int i = 0; i < 2; ++i) {
    anew.standing(i).set_looked(pods.standing(i).looked());
    anew.make_ready(i);
  }
  anew.after(1s);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(anew.last(i, kLook), nullptr);
    EXPECT_GT(anew.last(i, kLook)->look().number(), pods.standing(i).looked());
  }
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

// The disk of one takes its time, and its worker says that it looks. The other has not taken up its
// order: its step thread hangs, or all of it.
TEST(JobMachineLook, WhoTakesUpNoLookIsRestarted) {
  FakePods pods(2);
  make_seeing(pods, 2);
  pods.after(1s);
  pods.standing(0).set_phase_name("look");
  pods.after(Timing{}.start_deadline - 2s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  ASSERT_TRUE(pods.was_restarted(1));
  EXPECT_EQ(pods.view().failures.back().reason, "Stuck");
  pods.after(Timing{}.start_deadline);
  EXPECT_FALSE(pods.was_restarted(0));
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

class OlderWorkers : public ::testing::Test {
 protected:
  static constexpr int kPods = 2;
  void configure(std::uint64_t step) {  // what each sees on disk, once; 0: nothing
    for (int i = 0; i < kPods; ++i) see(i, step);
  }
  void see(int pod, std::uint64_t step) {
    pods_.standing(pod).set_has_checkpoint(step > 0);
    pods_.standing(pod).set_checkpoint_step(step);
    pods_.make_ready(pod);
  }
  void fail_start(int pod) {
    const std::uint64_t generation = pods_.last(pod, kForm)->form().generation();
    pods_.standing(pod).set_generation(generation);
    pods_.say(pod,
              [](wire::WorkerEvent& event) { event.mutable_failure()->set_reason("StartFailed"); });
  }
  // The process that was asked for, which looks anew.
  void begin_anew(int pod, std::uint64_t step) {
    pods_.exit(pod, -1, 9);
    wire::WorkerStanding& s = pods_.standing(pod);
    wire::WorkerId id = s.id();
    id.set_incarnation(id.incarnation() + 1);
    s = {};
    *s.mutable_id() = id;
    s.set_phase(wire::WORKER_STARTING);
    pods_.say(pod);
    see(pod, step);
  }

  FakePods pods_{kPods};
};

// Their disk did not answer when they were configured, and they took that for "none". They refuse
// the seed beside a checkpoint, and would for ever.
TEST_F(OlderWorkers, WhoCouldNotStartLooksAgainInItsNextProcess) {
  pods_.answers_probes = false;
  pods_.connect_all();
  configure(0);
  pods_.after(1s);
  pods_.swap_done();
  ASSERT_NE(pods_.last(0, kForm), nullptr);
  EXPECT_FALSE(pods_.last(0, kForm)->form().from_checkpoint());
  for (int i = 0; i < kPods; ++i) EXPECT_FALSE(pods_.was_restarted(i));
  for (int i = 0; i < kPods; ++i) fail_start(i);
  pods_.clear();
  pods_.after(10s);
  for (int i = 0; i < kPods; ++i) {
    EXPECT_TRUE(pods_.was_restarted(i));
    EXPECT_EQ(pods_.last(i, kForm), nullptr) << "what they saw is known to be wrong";
    begin_anew(i, 40);
  }
  pods_.after(1s);
  pods_.swap_done();
  for (int i = 0; i < kPods; ++i) {
    ASSERT_NE(pods_.last(i, kForm), nullptr);
    EXPECT_EQ(pods_.last(i, kForm)->form().checkpoint_step(), 40u);
  }
  EXPECT_EQ(pods_.view().failure_count, 0u) << "nothing of it is the job's fault";
}

// They saw the checkpoint of step 20, trained on from it, and all lost their state.
TEST_F(OlderWorkers, WhatWasSeenBeforeTheLastStepIsOld) {
  pods_.connect_all();
  configure(20);
  pods_.after(1s);
  pods_.settle();
  pods_.commit_all();
  pods_.after(1s);
  pods_.clear();
  for (int i = 0; i < kPods; ++i) {  // in the same process
    pods_.standing(i).set_has_state(false);
    see(i, 20);
  }
  pods_.settle();
  pods_.after(1s);
  for (int i = 0; i < kPods; ++i) {
    EXPECT_TRUE(pods_.was_restarted(i));
    EXPECT_EQ(pods_.last(i, kForm), nullptr);
    begin_anew(i, 40);
  }
  pods_.after(1s);
  pods_.settle();
  ASSERT_NE(pods_.last(0, kForm), nullptr);
  EXPECT_EQ(pods_.last(0, kForm)->form().checkpoint_step(), 40u);
}

// What an older worker names may have been set aside since: the START from it fails, and would
// fail for ever. It looks again when its next process is configured.
TEST(JobMachineLook, AnOlderWorkerWhoseStartFailedBeginsAnew) {
  FakePods pods(3);
  make_seeing(pods, 3);
  pods.after(1s);
  answer(pods, 0, 20, 7);
  for (const int old : {1, 2}) {
    pods.standing(old).set_looked(0);
    pods.standing(old).set_has_checkpoint(true);
    pods.standing(old).set_checkpoint_step(30);
    pods.say(old);
  }
  pods.swap_done();
  for (const int old : {1, 2}) {
    ASSERT_NE(pods.last(old, kForm), nullptr);
    EXPECT_EQ(pods.last(old, kForm)->form().checkpoint_step(), 30u);
    pods.standing(old).set_generation(pods.last(old, kForm)->form().generation());
    pods.say(old,
             [](wire::WorkerEvent& event) { event.mutable_failure()->set_reason("StartFailed"); });
  }
  pods.after(10s);
  for (const int old : {1, 2}) EXPECT_TRUE(pods.was_restarted(old));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_EQ(pods.view().failure_count, 0u) << "no fault of theirs";
  for (const int old : {1, 2}) {
    pods.begin_anew(old);
    pods.standing(old).set_has_checkpoint(true);
    pods.standing(old).set_checkpoint_step(20);
    pods.say(old);
  }
  pods.after(1s);
  answer(pods, 0, 20, 7);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 3u);
  EXPECT_EQ(pods.view().checkpoint_step, 20u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

// All of them are asked, and look.
void begin_to_look(FakePods& pods, int count) {
  make_seeing(pods, count);
  pods.after(1s);
  for (int i = 0; i < count; ++i) {
    pods.standing(i).set_phase_name("look");
    pods.say(i);
  }
}

TEST(JobMachineLook, ADiskThatDoesNotAnswerIsToldUntilItDoes) {
  FakePods pods(2);
  begin_to_look(pods, 2);
  EXPECT_EQ(pods.view().checkpoint_unread, "");
  pods.say(1, [](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("CheckpointFailed");
    event.mutable_failure()->set_message("listing /ckpt: Stale file handle");
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
  EXPECT_EQ(pods.view().checkpoint_unread,
            "pod gpt-1 on node n1: listing /ckpt: Stale file handle");
  EXPECT_EQ(pods.view().checkpoint_failing, "") << "it has nothing to write";
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase_name("idle");
    answer(pods, i, 40, 7);
  }
  EXPECT_EQ(pods.view().checkpoint_unread, "");
}

// Its disk keeps it: it cannot even say so.
TEST(JobMachineLook, ALookThatTakesLongIsTold) {
  FakePods pods(2);
  begin_to_look(pods, 2);
  pods.after(kLookLong - 2s);
  EXPECT_EQ(pods.view().checkpoint_unread, "");
  pods.after(3s);
  EXPECT_NE(pods.view().checkpoint_unread.find("pod gpt-0 on node n0"), std::string::npos);
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
  EXPECT_EQ(pods.view().checkpoint_failing, "pod gpt-0 on node n0: no space left");
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  pods.say(0, [](wire::WorkerEvent& event) { event.mutable_checkpoint_written()->set_step(50); });
  EXPECT_EQ(pods.view().checkpoint_damaged, "");
  EXPECT_EQ(pods.view().checkpoint_failing, "");
}

}  // namespace
}  // namespace rubato::coordinator
