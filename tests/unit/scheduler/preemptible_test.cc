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
  EXPECT_EQ(told(state, plan, "other").message,
            "needs 1 more GPU and may not be preempted; such jobs start inside what their queue is "
            "guaranteed, and queue \"b\" has no room for it there: give the queue a larger "
            "guarantee, or make it preemptible");
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

// … and while room is made for it there, others of its queue may have all of the other type.
TEST(Preemptible, ItsQueueKeepsTheTypeThatIsGuaranteedForIt) {
  Job borrows = running("borrows", 2, 2, {"n2", "n2"});
  for (Held& held : borrows.held) held.gpu_type = "B";
  Job other = in_queue("q", job("other", 4, 4));
  other.allow = {"A"};
  ClusterState state =
      cluster({node("n1", 8, 8, "A"), node("n2", 2, 0, "B")},
              {borrows, lasting_for_good(in_queue("q", job("lasts", 2, 2))), other});
  state.queues["q"] = {.name = "q"};
  state.queues["q"].quotas["A"].limit = 4;
  state.queues["q"].quotas["B"] = {.guaranteed = 2, .limit = 2};
  const Plan plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "lasts").reason, "WaitingForRelease");
  EXPECT_EQ(told(state, plan, "other").outcome, Outcome::kPlaced);
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

// Each is where the other one gains more. Where one stays, the other would leave for nothing.
TEST(Preemptible, NobodyLeavesForThePlaceOfOneThatStays) {
  ClusterState state = cluster({node("n1", 1, 0, "A"), node("n2", 1, 0, "B")},
                               {running("gains", 1, 1, {"n2"}), running("other", 1, 1, {"n1"})});
  state.jobs[0].held[0].gpu_type = "B";
  state.jobs[0].goodput = {{"A", 1, 0, 4}, {"B", 1, 0, 1}};
  state.jobs[1].goodput = {{"A", 1, 0, 2}, {"B", 1, 0, 1}};
  state.now_ms = kOfPlan;
  const PolicyConfig config{.policy = "sia"};
  ASSERT_EQ(make_plan(state, config).actions.size(), 2u);
  for (Job& job : state.jobs) {
    job.preemptible = false;
    EXPECT_TRUE(make_plan(state, config).actions.empty()) << job.id;
    job.preemptible = true;
  }
}

// Queue "b" is guaranteed nothing: what the policy would keep for "lasts" would lie idle.
TEST(Preemptible, NothingIsKeptForWhoHasNoGuarantee) {
  Job grows = in_queue("b", job("grows", 1, 8));
  for (const Gpus n : {1, 2, 4, 8})
    grows.measured.push_back({"A", n, 100.0 * static_cast<double>(n)});
  ClusterState state =
      cluster({node("n1", 8, 8)},
              {lasting(grows, 1'000'000),
               lasting_for_good(lasting(in_queue("b", job("lasts", 4, 4)), 1'000'000))});
  for (const char* name : {"a", "b"}) state.queues[name] = {.name = name};
  state.queues["a"].quotas["*"].guaranteed = 2;
  const Plan plan = make_plan(state, {.policy = "rubato"});
  EXPECT_EQ(told(state, plan, "lasts").reason, "GuaranteeFull");
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 8u);
}

// Its queue has its cells and nothing else: whether others there may be stopped is no matter.
TEST(Preemptible, WhoHasCellsAloneWaitsForThese) {
  ClusterState state =
      cluster({node("n1", 2, 0)}, {in_queue("cells", running("has", 2, 2, {"n1", "n1"})),
                                   lasting_for_good(in_queue("cells", job("waits", 2, 2)))});
  for (Held& held : state.jobs[0].held) held.cell = kNodeLevel;
  state.jobs[1].queued_at = 1;
  state.queues["cells"] = {.name = "cells", .borrowing = false, .cells = {{"A", kNodeLevel, 1}}};
  EXPECT_EQ(told(state, "waits").reason, "CellsFull");
}

// What it has in cells is of what its queue is guaranteed by number, from the first round on.
TEST(Preemptible, InCellsItCountsAtOnce) {
  ClusterState state = cluster({node("n1", 2, 2), node("n2", 2, 2)},
                               {lasting_for_good(in_queue("q", job("first", 2, 2))),
                                lasting_for_good(in_queue("q", job("second", 2, 2)))});
  state.jobs[1].queued_at = 1;
  state.queues["q"] = {.name = "q", .cells = {{"A", kNodeLevel, 1}}};
  state.queues["q"].quotas["*"].guaranteed = 2;
  const Plan plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "first").outcome, Outcome::kPlaced);
  EXPECT_EQ(told(state, plan, "second").reason, "GuaranteeFull");
}

// That others may be stopped from then on is nothing to one that would stop none of them.
TEST(Preemptible, AForecastMakesNoPlansForLeastTimesThatNobodyWaitsFor) {
  constexpr int kRun = kForecastPlansMost + 6;
  ClusterState state = cluster({node("n1", kRun, 0)}, {});
  for (int i = 0; i < kRun; ++i) {
    Job job = lasting(running("r" + std::to_string(i), 1, 1, {"n1"}), 3'600'000);
    job.min_run_ms = 1000 * (i + 1);
    job.running_since_ms = kOfPlan;
    state.jobs.push_back(std::move(job));
  }
  state.jobs.push_back(job("waits", 1, 1));
  state.jobs.back().queued_at = 1;
  state.now_ms = kOfPlan;
  EXPECT_EQ(expected_start(state, {}, kRun), 3'600'000);
}

// Of very many jobs a round is not planned twice.
TEST(Preemptible, OnALargeClusterNobodyIsNamed) {
  ClusterState state = low_and_high(lasting_for_good(running("low", 2, 2, {"n1", "n1"})));
  for (int i = 0; i < 10'000; ++i) {
    state.jobs.push_back(job("j" + std::to_string(i), 1, 1));
    state.jobs.back().refused = "it is suspended";
  }
  EXPECT_EQ(told(state, "high").reason, "InsufficientGPUs");
}

}  // namespace
}  // namespace rubato::sched
