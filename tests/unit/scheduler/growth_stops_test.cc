// Targets::stops_for_growth: who stops so that others come to their size.
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Jobs in the order of the state, with these sizes.
class SizesWithStops : public Policy {
 public:
  explicit SizesWithStops(std::vector<Gpus> sizes, bool stops = true)
      : sizes_(std::move(sizes)), stops_(stops) {}
  Targets decide(const Problem& problem) const override {
    Targets targets{.displaces = Displaces::kLaterInOrder,
                    .sizes = sizes_,
                    .starts = sizes_,
                    .sizes_are_kept = true,
                    .stops_for_growth = stops_};
    for (JobIndex j; j < problem.end_of_jobs(); ++j) targets.order.push_back(j);
    return targets;
  }

 private:
  std::vector<Gpus> sizes_;
  bool stops_;
};

// "short" is to have all of a node of four, on which "long" holds one.
ClusterState short_beside_long() {
  return cluster({node("n1", 4, 0)}, {lasting(running("short", 1, 4, {"n1", "n1", "n1"}), 100'000),
                                      lasting(running("long", 1, 4, {"n1"}), 10'000'000)});
}

Plan plan_with_stops(const ClusterState& state, std::vector<Gpus> sizes, bool stops = true) {
  return make_plan(state, SizesWithStops(std::move(sizes), stops), {.policy = "sizesWithStops"});
}

void expect_nobody_stops(const ClusterState& state, std::vector<Gpus> sizes, const char* why) {
  for (const Action& action : plan_with_stops(state, std::move(sizes)).actions)
    EXPECT_NE(action.kind, ActionKind::kPreempt) << why;
}

TEST(GrowthByStops, WhoIsToHaveNothingStopsWhereAnotherComesToItsSizeByThat) {
  const ClusterState state = short_beside_long();
  const Plan plan = plan_with_stops(state, {4, 0});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].job, "long");
  EXPECT_TRUE(plan_with_stops(state, {4, 0}, false).actions.empty());
  expect_nobody_stops(state, {4, 1}, "it is to have one");
  ClusterState narrow = state;
  narrow.jobs[0].max = 5;
  expect_nobody_stops(narrow, {5, 0}, "the other one would not come to its size");
}

TEST(GrowthByStops, NobodyStopsWhereItFitsWithout) {
  ClusterState state = short_beside_long();
  state.nodes.push_back(node("n2", 1, 1));
  const Plan plan = plan_with_stops(state, {4, 0});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kGrow);
  state.nodes.back().free = {};
  state.jobs.push_back(lasting(running("ends", 1, 1, {"n2"}), 1));
  state.jobs.back().held[0].leaving = true;
  expect_nobody_stops(state, {4, 0, 0}, "a pod is leaving already");
}

// What has left is for the one that grows, and not for the one that was stopped.
TEST(GrowthByStops, WhoWaitsAndIsToHaveNothingStartsWithWhatGrowthLeaves) {
  ClusterState state =
      cluster({node("n1", 4, 1)}, {lasting(running("short", 1, 4, {"n1", "n1", "n1"}), 100'000),
                                   lasting(job("long", 1, 4), 10'000'000)});
  Plan plan = plan_with_stops(state, {4, 0});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "short");
  state.nodes.push_back(node("n2", 1, 1));
  plan = plan_with_stops(state, {4, 0});
  ASSERT_EQ(plan.actions.size(), 2u);
  EXPECT_EQ(plan.actions[1].kind, ActionKind::kStart);
}

TEST(GrowthByStops, NobodyStopsWhoMayNotBeStopped) {
  ClusterState state = short_beside_long();
  state.jobs[1].preemptible = false;
  expect_nobody_stops(state, {4, 0}, "not preemptible");
  state = short_beside_long();
  state.jobs[1].priority = 1;
  expect_nobody_stops(state, {4, 0}, "of higher priority");
  state = short_beside_long();
  state.jobs[1].min_run_ms = 60'000;
  state.jobs[1].running_since_ms = state.now_ms;
  expect_nobody_stops(state, {4, 0}, "it has just started");
  state = short_beside_long();
  state.jobs[0].may_preempt = false;
  expect_nobody_stops(state, {4, 0}, "the other one may preempt nobody");
  state = short_beside_long();
  state.jobs[1].remaining_ms.reset();
  expect_nobody_stops(state, {4, 0}, "what it has left is not known");
  state = short_beside_long();
  state.queues["default"].quotas["A"] = {.guaranteed = 4};
  expect_nobody_stops(state, {4, 0}, "inside its guarantee");
}

}  // namespace
}  // namespace rubato::sched
