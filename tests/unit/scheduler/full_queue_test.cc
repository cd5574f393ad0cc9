// A queue that has all it may have, on a cluster with room: its jobs give each other GPUs.
#include "scheduler/plan.h"
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// The queue "default" may have four GPUs; there are eight.
ClusterState full_queue(std::vector<Job> jobs) {
  Gpus free = 8;
  for (const Job& job : jobs) free -= std::ssize(job.held);
  ClusterState state = cluster({node("n1", 8, free)}, std::move(jobs));
  state.queues["default"].quotas["*"].limit = 4;
  return state;
}

Job important(Job job) {
  job.priority = 1;
  return job;
}

TEST(FullQueue, AJobOfHigherPriorityDisplacesOneOfItsQueue) {
  const ClusterState state =
      full_queue({running("first", 2, 2, {"n1", "n1"}), running("second", 2, 2, {"n1", "n1"}),
                  important(job("high", 2, 2))});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].job, "second") << "the last in order";
  EXPECT_EQ(verdict_of(plan, state, "high").reason, Reason::kWaitingForRelease);
  EXPECT_EQ(verdict_of(plan, state, "high").waits_for, std::vector<std::string>{"second"});
}

TEST(FullQueue, NobodyIsStoppedWhereThatIsNotAllowedOrDoesNotHelp) {
  ClusterState state =
      full_queue({running("low", 4, 4, {"n1", "n1", "n1", "n1"}), job("equal", 2, 2)});
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  state.jobs[1].priority = 1;
  EXPECT_TRUE(make_plan(state, {.preempt = false}).actions.empty());
  state.queues["default"].preempts = Preempts::kNobody;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  state.queues["default"].preempts = Preempts::kOwnQueue;
  EXPECT_EQ(make_plan(state, {}).actions.size(), 1u);
  state.jobs[1].min = state.jobs[1].max = 5;  // more than its queue may ever have
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
}

TEST(FullQueue, OfSeveralThatCouldGoTheFirstInOrderIsSpared) {
  Job first = running("first", 3, 3, {"n1", "n1", "n1"});
  Job last = running("last", 1, 1, {"n1"});
  last.queued_at = 9;
  ClusterState state = full_queue({first, last, important(job("high", 3, 3))});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "first") << "without the last one alone there is no room";
}

// The last in order has pods where the other one cannot be: stopping it would help nobody.
TEST(FullQueue, WhoHasPodsWhereTheJobCanBeGives) {
  Job there = running("there", 4, 4, {"a", "a", "a", "a"});
  Job elsewhere = running("elsewhere", 4, 4, {"b", "b", "b", "b"});
  for (Held& held : elsewhere.held) held.gpu_type = "B";
  elsewhere.queued_at = 9;
  Job high = important(job("high", 4, 4));
  high.allow = {"A"};
  ClusterState state = cluster({node("a", 4, 0), node("b", 4, 0, "B")}, {there, elsewhere, high});
  state.queues["default"].quotas["*"].limit = 8;
  const Plan stopped = make_plan(state, {});
  ASSERT_EQ(stopped.actions.size(), 1u);
  EXPECT_EQ(stopped.actions[0].job, "there");
  EXPECT_EQ(verdict_of(stopped, state, "high").reason, Reason::kWaitingForRelease);
  // The same with what they have beyond their minimum.
  state.jobs[0].min = state.jobs[1].min = 1;
  state.jobs[2].min = state.jobs[2].max = 2;
  state.jobs[2].priority = 0;
  const Plan shrunk = make_plan(state, {.policy = "marginalThroughput"});
  ASSERT_EQ(shrunk.actions.size(), 1u);
  EXPECT_EQ(shrunk.actions[0].job, "there");
  EXPECT_EQ(shrunk.actions[0].kind, ActionKind::kShrink);
}

TEST(FullQueue, WhatElasticJobsHaveBeyondTheirMinimumGoesFirst) {
  const ClusterState state =
      full_queue({running("elastic", 1, 4, {"n1", "n1", "n1", "n1"}), job("new", 2, 2)});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove.size(), 2u) << "no more than it needs";
  EXPECT_EQ(verdict_of(plan, state, "new").reason, Reason::kWaitingForRelease);
}

// What one waits for no later one takes, though nodes have room for it.
TEST(FullQueue, WhatIsBeingMadeFreeIsKeptForWhomItIs) {
  Job later = job("later", 1, 1);
  later.queued_at = 9;
  ClusterState state = full_queue(
      {running("elastic", 2, 3, {"n1", "n1", "n1"}), important(job("new", 2, 2)), later});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "elastic");
  const Verdict& verdict = verdict_of(plan, state, "later");
  EXPECT_EQ(verdict.reason, Reason::kQueueLimit);
  EXPECT_EQ(verdict.in_use, 2) << "what is kept is not held";
  EXPECT_EQ(told(state, plan, "later").message,
            "queue \"default\" holds 2 GPUs, has promised 2 GPUs to jobs that come first, and may "
            "take 0 more that this job can use; needed: 1");
}

// A policy that says sizes: who is to have less gives back what another of the queue is to have.
TEST(FullQueue, SizesOfAPolicyAreReachedWithinIt) {
  Job fast = running("fast", 1, 4, {"n1"});
  Job slow = running("slow", 1, 4, {"n1", "n1", "n1"});
  fast.remaining_ms = slow.remaining_ms = 3'600'000;
  for (const Gpus n : {1, 2, 3, 4}) {
    fast.measured.push_back({"A", n, 100.0 * static_cast<double>(n)});
    slow.measured.push_back({"A", n, 100.0 + static_cast<double>(n)});
  }
  ClusterState state = full_queue({fast, slow});
  const Plan plan = make_plan(state, {.policy = "rubato"});
  ASSERT_EQ(plan.actions.size(), 2u);
  EXPECT_EQ(plan.actions[0].job, "slow");
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove.size(), 2u);
  EXPECT_EQ(plan.actions[1].job, "fast");
  EXPECT_EQ(plan.actions[1].add.size(), 2u);
}

}  // namespace
}  // namespace rubato::sched
