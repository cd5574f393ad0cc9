// Who may be stopped for whom.
#include "scheduler/plan.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

TEST(Plan, PreemptsOnlyLowerPriority) {
  Job high = job("high", 2, 2);
  const auto nodes = std::vector<Node>{node("n1", 2, 0)};
  Plan plan = make_plan(cluster(nodes, {running("low", 2, 2, {"n1", "n1"}), high}), {});
  EXPECT_TRUE(plan.actions.empty());
  high.priority = 1;
  plan = make_plan(cluster(nodes, {running("low", 2, 2, {"n1", "n1"}), high}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].job, "low");
}

// "high" would stop "low", which has all GPUs; it is of the queue "other", or of the same one.
Plan high_wants(Preempts leave, const std::string& queue_of_low, bool class_preempts = true) {
  Job high = job("high", 2, 2);
  high.priority = 1;
  high.may_preempt = class_preempts;
  Job low = running("low", 2, 2, {"n1", "n1"});
  low.queue = queue_of_low;
  ClusterState state = cluster({node("n1", 2, 0)}, {low, high});
  state.queues["default"].preempts = leave;
  state.queues["other"] = {.name = "other"};
  return make_plan(state, {});
}

TEST(Preemption, NeedsTheLeaveOfTheQueue) {
  EXPECT_TRUE(high_wants(Preempts::kNobody, "default").actions.empty());
  EXPECT_EQ(high_wants(Preempts::kOwnQueue, "default").actions.size(), 1u);
  EXPECT_TRUE(high_wants(Preempts::kOwnQueue, "other").actions.empty());
  EXPECT_EQ(high_wants(Preempts::kAnyQueue, "other").actions.size(), 1u);
}

TEST(Preemption, NeedsTheLeaveOfThePriorityClass) {
  EXPECT_TRUE(high_wants(Preempts::kAnyQueue, "default", false).actions.empty());
}

// What is lent of a guarantee is taken back all the same.
TEST(Preemption, AGuaranteeNeedsNobodysLeave) {
  Job mine = job("mine", 2, 2);
  Job borrower = running("borrower", 2, 2, {"n1", "n1"});
  borrower.queue = "other";
  ClusterState state = cluster({node("n1", 2, 0)}, {borrower, mine});
  state.queues["default"].preempts = Preempts::kNobody;
  state.queues["default"].quotas["*"].guaranteed = 2;
  state.queues["other"] = {.name = "other"};
  ASSERT_EQ(make_plan(state, {}).actions.size(), 1u);
  EXPECT_EQ(make_plan(state, {}).actions[0].job, "borrower");
}

// And it is said to be the reason, whatever priority the other has.
TEST(Preemption, AGuaranteeIsTheReasonWhereNothingElseGivesLeave) {
  Job mine = job("mine", 2, 2);
  mine.priority = 1;
  mine.may_preempt = false;
  Job borrower = running("borrower", 2, 2, {"n1", "n1"});
  borrower.queue = "other";
  ClusterState state = cluster({node("n1", 2, 0)}, {borrower, mine});
  state.queues["default"].quotas["*"].guaranteed = 2;
  state.queues["other"] = {.name = "other"};
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(to_text(plan.actions[0].cause),
            "preempted by mine (queue \"default\" takes back what it is guaranteed)");
}

// Whatever the policy: nobody stops or gives back for it, and others grow before it is served.
TEST(Preemption, NobodyMakesRoomForAJobWhoseStartFailed) {
  Job failed = job("failed", 2, 2);
  failed.priority = 1;
  failed.remaining_ms = failed.duration_ms = 1000;
  failed.spare_only = "nobody makes room for it before noon";
  Job large = running("large", 1, 4, {"n1", "n1", "n1", "n1"});
  large.remaining_ms = large.duration_ms = 1'000'000;
  for (const Descriptor& policy : all_policies()) {
    PolicyConfig config;
    config.policy = policy.name;
    const auto full = make_plan(cluster({node("n1", 4, 0)}, {failed, large}), config);
    EXPECT_TRUE(full.actions.empty()) << policy.name;
    EXPECT_EQ(full.verdicts[0].outcome, Outcome::kNotNow) << policy.name;
    // With what is free it begins.
    const auto open =
        make_plan(cluster({node("n1", 4, 0), node("n2", 2, 2)}, {failed, large}), config);
    ASSERT_FALSE(open.actions.empty()) << policy.name;
    EXPECT_EQ(open.verdicts[0].outcome, Outcome::kPlaced) << policy.name;
  }
  const Plan plan = make_plan(cluster({node("n1", 4, 0)}, {failed, large}), {});
  EXPECT_EQ(explain(plan.verdicts[0], failed).message,
            "needs 2 more GPUs, 0 are free for it; nobody makes room for it before noon");
}

TEST(Queues, WhoIsNotAdmittedWaitsAndIsTold) {
  Job stranger = job("stranger", 1, 2);
  stranger.not_admitted = "queue \"default\" takes jobs of other namespaces only";
  const Plan plan = make_plan(cluster({node("n1", 2, 2)}, {stranger}), {});
  EXPECT_TRUE(plan.actions.empty());
  const Explanation said = explain(plan.verdicts.at(0), stranger);
  EXPECT_EQ(said.reason, "QueueForbidden");
  EXPECT_EQ(said.message, stranger.not_admitted);
}

}  // namespace
}  // namespace rubato::sched
