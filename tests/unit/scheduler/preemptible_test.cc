// Jobs that are not to be stopped for others: never, or not in the first time after their start.
#include "scheduler/blockers.h"
#include "scheduler/forecast.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr TimeMs kOfPlan = 1'000'000;

Job lasting_for_good(Job job) {
  job.preemptible = false;
  return job;
}

// "low" has all GPUs of a node, and "high" wants as many of them.
ClusterState low_and_high(Job low, Gpus wanted = 2) {
  Job high = job("high", wanted, wanted);
  high.priority = 1;
  ClusterState state = cluster({node("n1", 2, 0)}, {std::move(low), high});
  state.now_ms = kOfPlan;
  return state;
}

const Verdict& verdict_on(const ClusterState& state, const Plan& plan, const JobId& id) {
  const auto job = std::ranges::find(state.jobs, id, &Job::id);
  return plan.verdicts.at(static_cast<std::size_t>(job - state.jobs.begin()));
}

TEST(Preemptible, WhoIsNotRunsOnAndIsNamed) {
  const ClusterState state = low_and_high(lasting_for_good(running("low", 2, 2, {"n1", "n1"})));
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  const Told said = told(state, plan, "high");
  EXPECT_EQ(said.outcome, Outcome::kNotNow);
  EXPECT_EQ(said.reason, "OthersNotPreemptible");
  EXPECT_EQ(said.message,
            "needs 2 more GPUs; low would make room for it, but may not be preempted");
  EXPECT_EQ(plan.verdicts.at(1).until_ms, std::nullopt);
  EXPECT_EQ(blockers_of(state, {}, "high"), std::vector<JobId>{"low"});
}

TEST(Preemptible, OnlyThoseWhoWouldMakeRoomAreNamed) {
  ClusterState state = low_and_high(lasting_for_good(running("low", 2, 2, {"n1", "n1"})));
  state.jobs[1].priority = 0;
  EXPECT_EQ(told(state, "high").reason, "InsufficientGPUs");
  state.jobs[1].priority = 1;
  state.queues["default"].preempts = Preempts::kNobody;
  EXPECT_EQ(told(state, "high").reason, "InsufficientGPUs");
  EXPECT_EQ(told(state, make_plan(state, {.preempt = false}), "high").reason, "InsufficientGPUs");
}

TEST(Preemptible, AfterItsLeastTimeAJobIsStoppedAsAnyOther) {
  Job low = running("low", 2, 2, {"n1", "n1"});
  low.min_run_ms = 5000;
  low.running_since_ms = kOfPlan - 2000;
  ClusterState state = low_and_high(low);
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(told(state, plan, "high").message,
            "needs 2 more GPUs; low would make room for it, but may not be preempted yet");
  EXPECT_EQ(plan.verdicts.at(1).until_ms, kOfPlan + 3000);
  EXPECT_EQ(expected_start(state, {}, 1), 3000);
  state.now_ms += 2999;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  state.now_ms += 1;
  ASSERT_EQ(make_plan(state, {}).actions.size(), 1u);
  EXPECT_EQ(make_plan(state, {}).actions[0].kind, ActionKind::kPreempt);
  state.now_ms = kOfPlan;
  state.jobs[0].running_since_ms = -1;
  EXPECT_EQ(make_plan(state, {}).actions.size(), 1u) << "when it started is not known";
}

TEST(Preemptible, WhatItHasBeyondItsMinimumItGives) {
  const ClusterState state = low_and_high(lasting_for_good(running("low", 1, 2, {"n1", "n1"})), 1);
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(told(state, plan, "high").reason, "WaitingForRelease");
}

TEST(Preemptible, OthersAreStoppedInItsPlace) {
  Job keeps = lasting_for_good(running("keeps", 2, 2, {"n1", "n1"}));
  keeps.queued_at = 9;  // the last in order goes first
  ClusterState state = low_and_high(running("stops", 2, 2, {"n2", "n2"}));
  state.jobs.push_back(keeps);
  state.nodes.push_back(node("n2", 2, 0));
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "stops");
}

TEST(Preemptible, InAFullQueueNeither) {
  ClusterState state = low_and_high(lasting_for_good(running("low", 2, 2, {"n1", "n1"})));
  state.nodes.push_back(node("n2", 2, 2));
  state.queues["default"].quotas["*"].limit = 2;
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(told(state, plan, "high").reason, "OthersNotPreemptible");
  state.jobs[0].preemptible = true;
  EXPECT_EQ(make_plan(state, {}).actions.size(), 1u);
}

// "mine" comes inside a cell of its queue, and "low" has that in part.
TEST(Preemptible, ForCellsNeither) {
  ClusterState state = cluster(
      {node("n1", 2, 1)}, {running("low", 1, 1, {"n1"}), in_queue("cells", job("mine", 2, 2))});
  state.queues["cells"] = {.name = "cells", .cells = {{"A", kNodeLevel, 1}}};
  ASSERT_EQ(make_plan(state, {}).actions.size(), 1u);
  state.jobs[0].preemptible = false;
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(told(state, plan, "mine").reason, "OthersNotPreemptible");
}

// Queue "a" is guaranteed two of four GPUs, and "b" nothing.
TEST(Preemptible, WhoIsNotStartsInsideTheGuaranteeOfItsQueue) {
  ClusterState state =
      cluster({node("n1", 4, 4)}, {lasting_for_good(in_queue("a", job("first", 2, 2))),
                                   lasting_for_good(in_queue("a", job("second", 1, 1))),
                                   lasting_for_good(in_queue("b", job("other", 1, 1))),
                                   in_queue("b", job("any", 1, 1))});
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    state.jobs[i].queued_at = static_cast<double>(i);
  state.queues["a"] = {.name = "a"};
  state.queues["b"] = {.name = "b"};
  state.queues["a"].quotas["*"].guaranteed = 2;
  Plan plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "first").outcome, Outcome::kPlaced);
  EXPECT_EQ(told(state, plan, "any").outcome, Outcome::kPlaced);
  EXPECT_EQ(verdict_on(state, plan, "other").reason, Reason::kGuaranteeFull);
  const Told said = told(state, plan, "second");
  EXPECT_EQ(said.outcome, Outcome::kNotNow);
  EXPECT_EQ(said.reason, "GuaranteeFull");
  EXPECT_EQ(said.message,
            "needs 1 more GPU and may not be preempted; such jobs start inside what their queue is "
            "guaranteed, and queue \"a\" has no room for it there beside others of the kind: wait "
            "for these, give the queue a larger guarantee, or make it preemptible");
  state.queues["a"].quotas["*"].guaranteed = 3;
  EXPECT_EQ(told(state, "second").outcome, Outcome::kPlaced);
  state.queues["a"].quotas.clear();
  plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "second").outcome, Outcome::kPlaced) << "nothing is guaranteed";
  EXPECT_EQ(told(state, plan, "other").outcome, Outcome::kPlaced);
}

// What its queue is guaranteed is of B: there it starts, though A is free, too.
TEST(Preemptible, ItStartsOnATypeThatIsGuaranteed) {
  ClusterState state = cluster({node("n1", 8, 8, "A"), node("n2", 2, 2, "B")},
                               {lasting_for_good(job("lasts", 2, 2))});
  state.queues["default"].quotas["B"].guaranteed = 2;
  for (const Descriptor& policy : all_policies()) {
    const Plan plan = make_plan(state, {.policy = policy.name});
    for (const Action& action : plan.actions)
      for (const Placement& pod : action.add) EXPECT_EQ(pod.gpu_type, "B") << policy.name;
  }
  EXPECT_EQ(told(state, "lasts").outcome, Outcome::kPlaced);
}

// A guarantee whose parts have some of their own is for these.
TEST(Preemptible, ItDoesNotTakeWhatAPartOfTheWholeIsGuaranteed) {
  ClusterState state =
      cluster({node("n1", 4, 4)}, {lasting_for_good(in_queue("vision", job("sees", 1, 1))),
                                   lasting_for_good(in_queue("speech", job("hears", 1, 1)))});
  state.queues["whole"] = {.name = "whole"};
  state.queues["whole"].quotas["*"].guaranteed = 4;
  for (const char* part : {"vision", "speech"})
    state.queues[part] = {.name = part, .parent = "whole"};
  EXPECT_EQ(told(state, "sees").outcome, Outcome::kPlaced);
  state.queues["speech"].quotas["*"].guaranteed = 2;
  const Plan plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "sees").reason, "GuaranteeFull");
  EXPECT_EQ(told(state, plan, "hears").outcome, Outcome::kPlaced);
}

// Queue "a" holds twice what it is guaranteed: what of it may be stopped is what "b" gets back,
// whoever came first.
TEST(Preemptible, NoGuaranteeWaitsForIt) {
  Job lasts = lasting_for_good(in_queue("a", running("lasts", 2, 2, {"n1", "n1"})));
  lasts.queued_at = 5;
  ClusterState state =
      cluster({node("n1", 4, 0)}, {in_queue("a", running("borrows", 2, 2, {"n1", "n1"})), lasts,
                                   in_queue("b", job("wants", 2, 2))});
  for (const char* name : {"a", "b"}) {
    state.queues[name] = {.name = name};
    state.queues[name].quotas["*"].guaranteed = 2;
  }
  for (const Descriptor& policy : all_policies()) {
    const Plan plan = make_plan(state, {.policy = policy.name});
    const auto stops = std::ranges::find(plan.actions, "borrows", &Action::job);
    ASSERT_NE(stops, plan.actions.end()) << policy.name;
    EXPECT_EQ(stops->kind, ActionKind::kPreempt) << policy.name;
    EXPECT_EQ(std::ranges::count(plan.actions, "lasts", &Action::job), 0) << policy.name;
  }
}

// Its host could be stopped at any time.
TEST(Preemptible, ItIsNobodysGuest) {
  ClusterState state =
      cluster({node("n1", 2, 0)}, {running("host", 2, 2, {"n1", "n1"}), job("waits", 2, 2)});
  for (Job& job : state.jobs) {
    job.duration_ms = 1'000'000;
    job.gpu_use = {.busy = 0.4, .memory = kGib, .beside_another = 0.97};
  }
  state.jobs[0].allocated_ms = state.now_ms = 1000;
  const PolicyConfig config{.policy = "lucid", .sharing = true};
  ASSERT_EQ(make_plan(state, config).actions.size(), 1u);
  state.jobs[1].min_run_ms = 1;
  EXPECT_TRUE(make_plan(state, config).actions.empty());
  state.jobs[1].min_run_ms = 0;
  state.jobs[1].preemptible = false;
  EXPECT_TRUE(make_plan(state, config).actions.empty());
}

}  // namespace
}  // namespace rubato::sched
