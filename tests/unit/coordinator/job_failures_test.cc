// JobMachine: what is charged to maxRestarts, whoever leads.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

// Who leads after that record; its agents have counted what those of `before` have.
FakePods led_after(const Record& record, const FakePods& before) {
  FakePods pods(static_cast<int>(before.standings.size()), record);
  pods.crashes = before.crashes;
  return pods;
}

TEST(JobMachineFailures, ACrashThatNoLeaderHeardIsCounted) {
  FakePods pods(2);
  pods.start_training();
  pods.exit(1, -1, 9);
  pods.settle();
  ASSERT_EQ(pods.view().failure_count, 1u);
  pods.crashes = {0, 3};  // two more, while nobody leads
  FakePods next = led_after(pods.machine.record(), pods);
  next.connect_all();
  EXPECT_EQ(next.view().failure_count, 3u);
  EXPECT_EQ(next.view().failures.back().pod, "gpt-1");
  next.disconnect(1);
  next.connect(1);
  EXPECT_EQ(next.view().failure_count, 3u) << "no other one";
}

// Its message is lost with the connection.
TEST(JobMachineFailures, ACrashWhileTheLinkIsBrokenIsCounted) {
  FakePods pods(2);
  pods.start_training();
  pods.disconnect(1);
  pods.crashes[1] = 1;
  pods.connect(1);
  EXPECT_EQ(pods.view().failure_count, 1u);
}

// Nor is why it ended: a script that lacks a package may be over before the first hello.
TEST(JobMachineFailures, WhyAWorkerEndedIsToldThoughNoLeaderHeardIt) {
  FakePods pods(1);
  wire::Hello hello;
  hello.set_pod_uid("uid-0");
  hello.set_crashes(1);
  wire::Exited& crash = *hello.mutable_last_crash();
  crash.mutable_id()->set_pod_uid("uid-0");
  crash.mutable_id()->set_incarnation(1);
  crash.set_exit_code(1);
  crash.set_reason("Error");
  crash.set_message("No module named 'nothing'");
  pods.machine.connected(pods.now, hello);
  pods.after(1s);
  ASSERT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().failures[0].reason, "Error");
  EXPECT_EQ(pods.view().failures[0].message,
            "worker 0 exited with status 1, signal 0: No module named 'nothing'");

  // Told late: no hello has named it, or a successor is known.
  wire::AgentMessage late;
  *late.mutable_exited() = crash;
  late.mutable_exited()->set_crashes(2);
  pods.machine.message(pods.now, "uid-0", late);
  pods.after(1s);
  EXPECT_EQ(pods.view().failure_count, 2u);
  pods.standing(0).mutable_id()->set_incarnation(3);
  pods.say(0);
  late.mutable_exited()->set_crashes(3);
  for (int i = 0; i < 2; ++i) pods.machine.message(pods.now, "uid-0", late);
  pods.after(1s);
  EXPECT_EQ(pods.view().failure_count, 3u);
}

// No generation misses it: the record says it all the same.
TEST(JobMachineFailures, ACrashBeforeTheFirstGenerationIsOnRecord) {
  FakePods pods(2);
  pods.connect(0);
  pods.exit(0, 1, 0);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->generation, 0u);
  EXPECT_EQ(pods.to_write->failures, 1u);
  EXPECT_EQ(pods.to_write->crashes, (std::map<std::string, std::uint64_t>{{"uid-0", 1}}));
  pods.exit(0, 1, 0);
  pods.swap_done();
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->failures, 2u);
  pods.swap_done();
  EXPECT_FALSE(pods.to_write.has_value());
}

// A script of runtime pytorch that has made no Job, say: of its process the agent alone speaks.
TEST(JobMachineFailures, AProcessWithoutASignOfWorkIsToldUntilItShowsOneOrEnds) {
  FakePods pods(2);
  pods.connect_all();
  pods.make_ready(0);
  pods.after(kIdleLong - 1s);
  EXPECT_EQ(pods.view().idle_process, "");
  pods.after(2s);
  EXPECT_EQ(pods.view().idle_process,
            "worker 0 of pod gpt-1 on node n1 has run for 60 s without a sign of work; after "
            "600 s at the latest its process is ended");
  EXPECT_EQ(pods.view().reason, "waiting for 2 ready workers; " + pods.view().idle_process);
  pods.exit(1, 1, 0);
  EXPECT_EQ(pods.view().idle_process, "");
  pods.standing(1).mutable_id()->set_incarnation(2);
  pods.after(kIdleLong + 1s);
  EXPECT_NE(pods.view().idle_process, "") << "nor does the next one";
  pods.standing(1).set_micro_done(1);
  pods.say(1);
  EXPECT_EQ(pods.view().idle_process, "");
  pods.change_wish([](Wish& wish) { wish.is_stateless = true; });
  pods.standing(1).mutable_id()->set_incarnation(3);
  pods.standing(1).set_micro_done(0);
  pods.after(kIdleLong + 1s);
  EXPECT_EQ(pods.view().idle_process, "") << "a program has nothing to show yet";
}

TEST(JobMachineFailures, TheFirstProcessOfAPodStartsUntilItIsReadyOrEnds) {
  FakePods pods(2);
  EXPECT_FALSE(pods.view().is_starting);
  pods.connect_all();
  EXPECT_TRUE(pods.view().is_starting);
  pods.make_ready(0);
  pods.after(Timing{}.start_deadline - 1s);
  EXPECT_TRUE(pods.view().is_starting);
  pods.standing(1).set_micro_done(1);
  pods.say(1);
  pods.after(Timing{}.start_deadline - 1s);
  EXPECT_TRUE(pods.view().is_starting) << "it has shown a sign of work";
  pods.after(2s);
  EXPECT_FALSE(pods.view().is_starting);
  EXPECT_TRUE(pods.was_restarted(1));
  pods.exit(1, 1, 0);
  pods.standing(1).mutable_id()->set_incarnation(2);
  pods.say(1);
  EXPECT_FALSE(pods.view().is_starting) << "one has failed there before";
}

// The leader that has it killed counts it; the next one hears of an end, and of no crash.
TEST(JobMachineFailures, AnOrderedEndIsCountedOnceWhoeverHearsOfIt) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.connect(2);
  for (Duration waited{}; !pods.was_restarted(2) && waited < 2 * Timing{}.start_deadline;
       waited += 15s) {
    pods.commit_all();
    pods.after(15s);
  }
  ASSERT_EQ(pods.view().failure_count, 1u);
  pods.swap_done();
  FakePods next = led_after(pods.machine.record(), pods);
  next.connect_all();
  wire::AgentMessage message;
  *message.mutable_exited()->mutable_id() = next.standing(2).id();
  message.mutable_exited()->set_exit_code(-1);
  message.mutable_exited()->set_signal(9);
  message.mutable_exited()->set_crashes(0);
  next.machine.message(next.now, "uid-2", message);
  next.after(1s);
  EXPECT_EQ(next.view().failure_count, 1u);
}

// Of pods that are no more nothing is kept, but the sum.
TEST(JobMachineFailures, WhatAgentsHaveCountedIsForgottenWithTheirPods) {
  FakePods pods(3);
  pods.start_training();
  pods.exit(2, -1, 11);
  pods.settle();
  EXPECT_EQ(pods.machine.record().crashes.size(), 1u);
  pods.disconnect(2);
  pods.change_wish([](Wish& wish) { wish.pods.pop_back(); });
  pods.exit(1, -1, 11);
  pods.settle();
  EXPECT_EQ(pods.machine.record().crashes, (std::map<std::string, std::uint64_t>{{"uid-1", 1}}));
  EXPECT_EQ(pods.machine.record().failures, 2u);
}

TEST(JobMachineFailures, AgentsOfABuildBeforeAreCountedByTheirMessages) {
  FakePods pods(2);
  pods.counts_crashes = false;
  pods.start_training();
  pods.begin_anew(1);
  pods.settle();
  pods.exit(1, -1, 9);
  EXPECT_EQ(pods.view().failure_count, 2u);
  FakePods next = led_after(pods.machine.record(), pods);
  next.counts_crashes = false;
  next.connect_all();
  EXPECT_EQ(next.view().failure_count, pods.machine.record().failures);
}

TEST(JobMachineFailures, NoAgentCountsTheJobToDeath) {
  FakePods pods(2);
  pods.start_training();
  pods.disconnect(1);
  pods.crashes[1] = ~0u;
  pods.connect(1);
  EXPECT_LE(pods.view().failure_count, 1'000'000u);
}

}  // namespace
}  // namespace rubato::coordinator
