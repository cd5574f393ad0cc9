// Whom a plan lets grow, and to which size.
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

TEST(Plan, WhereTheBestSizeDoesNotFitASmallerOneMay) {
  Job j = running("j", 1, 3, {"n0"});
  j.measured = {{"A", 1, 100}, {"A", 2, 110}, {"A", 3, 200}};
  const std::vector<Node> nodes{node("n0", 1, 0), node("n1", 1, 1)};
  const Plan plan = make_plan(cluster(nodes, {j}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kGrow);
  EXPECT_EQ(plan.actions[0].add.size(), 1u);
  j.measured = {{"A", 1, 100}, {"A", 2, 90}, {"A", 3, 95}};
  EXPECT_TRUE(make_plan(cluster(nodes, {j}), {}).actions.empty());
  EXPECT_EQ(make_plan(cluster(nodes, {j}), {.min_relative_gain = -1}).actions.size(), 1u);
}

// What it may hold there is not known until there is such a queue again.
TEST(Plan, WhoseQueueIsGoneKeepsWhatItHoldsAndDoesNotGrow) {
  Job a = running("a", 1, 4, {"n1"});
  a.queue = "gone";
  const ClusterState state = cluster({node("n1", 4, 3)}, {a});
  for (const char* policy : {"marginalThroughput", "rubato"}) {
    const Plan plan = make_plan(state, {.policy = policy});
    EXPECT_TRUE(plan.actions.empty()) << policy;
    EXPECT_EQ(told(state, plan, "a").outcome, Outcome::kPlaced) << policy;
    EXPECT_EQ(told(state, plan, "a").reason, "QueueUnknown") << policy;
    EXPECT_EQ(told(state, plan, "a").message,
              "there is no TrainingQueue \"gone\": it keeps what it holds, and does not grow; "
              "create it or change spec.queue")
        << policy;
  }
  // What it has lost of its minimum it gets back.
  a = running("a", 2, 4, {"n1", "n1"});
  a.queue = "gone";
  a.held[1].lost = true;
  const Plan plan = make_plan(cluster({node("n1", 4, 2)}, {a}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kRepair);
  EXPECT_EQ(plan.actions[0].add.size(), 1u);
}

TEST(Plan, ASizeThatItsShapeNoLongerAllowsChanges) {
  Job a = running("a", 1, 8, {"n1", "n1", "n1"});
  a.shape = Shape::kPowersOfTwo;
  const std::vector<Node> full{node("n1", 3, 0)};
  Plan plan = make_plan(cluster(full, {a}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(to_text(plan.actions[0].cause),
            "gpus.shape and perPod do not allow the size that it had");
  plan = make_plan(cluster({node("n1", 4, 1)}, {a}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kGrow) << "where there is room";
  a.min = 3;
  EXPECT_TRUE(make_plan(cluster(full, {a}), {}).actions.empty()) << "not below its minimum";
  a.min = 1;
  a.cooling = true;
  EXPECT_TRUE(make_plan(cluster(full, {a}), {}).actions.empty()) << "it may grow later";
  a.cooling = false;
  a.settled = false;
  EXPECT_TRUE(make_plan(cluster(full, {a}), {}).actions.empty());
}

TEST(Plan, ASizeThatItsShapeNoLongerAllowsIsKeptUntilItIsItsTurnToGrow) {
  Job a = running("a", 1, 4, {"n1", "n1", "n1"});
  a.shape = Shape::kPowersOfTwo;
  Job b = a;
  b.id = b.name = "b";
  const Plan plan = make_plan(cluster({node("n1", 8, 2)}, {a, b}), {.grown_per_round = 1});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kGrow);
  // Where there is room for one only, the other one has no turn.
  EXPECT_EQ(make_plan(cluster({node("n1", 7, 1)}, {a, b}), {.grown_per_round = 1}).actions.size(),
            2u);
}

// Says one size for the only job.
class ToldSize : public Policy {
 public:
  explicit ToldSize(Gpus size) : size_(size) {}
  Targets decide(const Problem&) const override {
    return {.order = {JobIndex{0}}, .sizes = {size_}};
  }

 private:
  Gpus size_;
};

TEST(Plan, WhereTheTargetDoesNotFitTheLargestSizeThatIsWorthItIsTaken) {
  Job j = running("j", 1, 8, {"n0"});
  j.measured = {{"A", 1, 100}, {"A", 2, 150}, {"A", 3, 90}, {"A", 8, 300}};
  const std::vector<Node> nodes{node("n0", 1, 0), node("n1", 2, 2)};
  const Plan plan = make_plan(cluster(nodes, {j}), ToldSize(8), {.policy = "told"});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 1u);
}

TEST(PlanBudget, AJobThatWasGrownAMomentAgoIsLeftAlone) {
  Job warm = running("warm", 1, 4, {"n1"});
  warm.cooling = true;
  const auto state = cluster({node("n1", 4, 2)}, {warm, running("cold", 1, 4, {"n1"})});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "cold");
}

TEST(PlanBudget, ARoundGrowsNoMoreThanItMay) {
  const auto state =
      cluster({node("n1", 8, 4)},
              {running("a", 1, 2, {"n1"}), running("b", 1, 2, {"n1"}), running("c", 1, 2, {"n1"})});
  EXPECT_EQ(make_plan(state, {}).actions.size(), 3u);
  EXPECT_EQ(make_plan(state, {.grown_per_round = 2}).actions.size(), 2u);
}

}  // namespace
}  // namespace rubato::sched
