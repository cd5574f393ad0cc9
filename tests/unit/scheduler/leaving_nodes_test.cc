// Nodes that are about to go: who leaves them, for where, and who stays.
#include "scheduler/certificate/feasible.h"
#include "scheduler/model/sizes.h"
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/plan_books.h"

#include <set>
#include <variant>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

void let_go_of_node(ClusterState& state, const NodeId& id) {
  Node& node = *std::ranges::find(state.nodes, id, &Node::id);
  node.leaving = true;
  node.schedulable = false;
  node.why_not = "maintenance at noon";
}

ClusterState with_n1_leaving(std::vector<Node> nodes, std::vector<Job> jobs) {
  ClusterState state = cluster(std::move(nodes), std::move(jobs));
  let_go_of_node(state, "n1");
  return state;
}

std::vector<NodeId> nodes_given(const Action& action) {
  std::vector<NodeId> nodes;
  for (const Placement& placement : action.add) nodes.push_back(placement.node);
  return nodes;
}

std::int64_t pods_held_on(const Job& job, const NodeId& node) {
  return std::ranges::count_if(job.held,
                               [&](const Held& held) { return held.stays() && held.node == node; });
}

std::int64_t pods_held_on(const ClusterState& state, const NodeId& node) {
  std::int64_t pods = 0;
  for (const Job& job : state.jobs) pods += pods_held_on(job, node);
  return pods;
}

// What the plan says is done, and who was told to leave has left. Ordinals are distinct.
void play(const Plan& plan, ClusterState& state) {
  obey(plan, state);
  state.now_ms += 1000;
  for (Job& job : state.jobs) {
    for (const Held& held : job.held)
      if (held.leaving) std::ranges::find(state.nodes, held.node, &Node::id)->free += job.per_pod;
    std::erase_if(job.held, [](const Held& held) { return held.leaving; });
    for (std::size_t i = 0; i < job.held.size(); ++i)
      job.held[i].ordinal = static_cast<std::int64_t>(i);
    if (!job.held.empty()) job.allocated_ms = std::max<TimeMs>(job.allocated_ms, 0);
  }
}

TEST(LeavingNodes, WhatAJobHasThereIsReplacedAtOnce) {
  const auto state =
      with_n1_leaving({node("n1", 2, 0), node("n2", 4, 4)}, {running("a", 2, 2, {"n1", "n1"})});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  const Action& action = plan.actions[0];
  EXPECT_EQ(action.kind, ActionKind::kRepair);
  EXPECT_EQ(action.remove, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(nodes_given(action), (std::vector<NodeId>{"n2", "n2"}));
  EXPECT_EQ(to_text(action.cause), "leaves node n1 before that goes (maintenance at noon)");
  EXPECT_EQ(why_infeasible(state, plan), "");
  EXPECT_EQ(told(state, plan, "a").reason, "Placed");
}

TEST(LeavingNodes, AnElasticJobKeepsItsSizeAndGrowsAgainAfterwards) {
  const auto state =
      with_n1_leaving({node("n1", 2, 1), node("n2", 4, 3)}, {running("a", 1, 4, {"n1", "n2"})});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(nodes_given(plan.actions[0]), (std::vector<NodeId>{"n2"}));
  const ClusterState rest = at_rest(state, {}, 5);
  EXPECT_EQ(pods_held_on(rest, "n2"), 4);
  EXPECT_EQ(pods_held_on(rest, "n1"), 0);
}

TEST(LeavingNodes, WithoutRoomElsewhereAJobAboveItsMinimumShrinks) {
  auto state = with_n1_leaving({node("n1", 1, 0), node("n2", 3, 0)},
                               {running("a", 1, 4, {"n1", "n2", "n2", "n2"})});
  Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{0}));
  EXPECT_TRUE(plan.actions[0].add.empty());
  state.jobs[0].shape = Shape::kPowersOfTwo;  // three is no size
  plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(why_infeasible(state, plan), "");
}

TEST(LeavingNodes, WhoCanDoNeitherStaysAndIsToldSo) {
  const auto state =
      with_n1_leaving({node("n1", 2, 0), node("n2", 1, 1)}, {running("a", 2, 2, {"n1", "n1"})});
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  const Told said = told(state, plan, "a");
  EXPECT_EQ(said.outcome, Outcome::kPlaced);
  EXPECT_EQ(said.reason, "NodeLeaves");
  EXPECT_EQ(said.message,
            "node n1 is about to go, and pods of it stay there until then: there is no room "
            "elsewhere now with which it would have its minimum of 2 GPUs");
}

TEST(LeavingNodes, NobodyIsMovedWhileItChanges) {
  auto state =
      with_n1_leaving({node("n1", 2, 0), node("n2", 4, 4)}, {running("a", 2, 2, {"n1", "n1"})});
  state.jobs[0].settled = false;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  state.jobs[0].settled = true;
  state.jobs[0].refused = "its template is refused";
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
}

TEST(LeavingNodes, NobodyNewComesThere) {
  const auto state = with_n1_leaving({node("n1", 4, 4), node("n2", 1, 1)}, {job("a", 2, 2)});
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  EXPECT_EQ(told(state, "a").reason, "NodesUnavailable");
}

TEST(LeavingNodes, WhoShrinksForAnotherReasonLeavesThemFirst) {
  const auto state = with_n1_leaving({node("n1", 1, 0), node("n2", 2, 1)},
                                     {running("a", 1, 1, {"n1", "n2"})});  // max was lowered
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{0}));
}

TEST(LeavingNodes, AFullQueueIsNoHindrance) {
  auto state =
      with_n1_leaving({node("n1", 2, 0), node("n2", 4, 4)}, {running("a", 2, 4, {"n1", "n1"})});
  state.queues["default"].quotas["*"].limit = 2;
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 2u);
  EXPECT_EQ(why_infeasible(state, plan), "");
}

// With the pods that stay; without any it is free to go to another one.
TEST(LeavingNodes, AJobStaysInOneDomain) {
  auto state = with_n1_leaving({node("n1", 2, 0), node("n2", 2, 1), node("n3", 4, 4)}, {});
  state.levels = {"zone"};
  for (Node& node : state.nodes) node.domains["zone"] = node.id == "n3" ? "b" : "a";
  state.jobs = {running("a", 2, 2, {"n1", "n2"})};
  state.jobs[0].topology = Topology{"zone", true};
  Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(nodes_given(plan.actions[0]), (std::vector<NodeId>{"n2"}));
  state.nodes[1].free.gpus = 0;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  EXPECT_EQ(told(state, "a").reason, "NodeLeaves");
  state.jobs[0].held[1].node = "n1";
  plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(nodes_given(plan.actions[0]), (std::vector<NodeId>{"n3", "n3"}));
  EXPECT_EQ(why_infeasible(state, plan), "");
}

// Three nodes for two jobs that two have room for.
TEST(EveryPolicy, LeavesANodeThatIsAboutToGo) {
  for (const Descriptor& policy : all_policies()) {
    SCOPED_TRACE(policy.name);
    const PolicyConfig config{.policy = policy.name};
    ClusterState state = cluster({node("n1", 4, 4), node("n2", 4, 4), node("n3", 4, 4)},
                                 {job("rigid", 2, 2), job("elastic", 1, 4)});
    for (Job& job : state.jobs) {
      job.duration_ms = job.remaining_ms = 100'000'000;
      job.measured = {{"A", 1, 100}, {"A", 2, 190}, {"A", 4, 360}};
    }
    for (int round = 0; round < 20; ++round) play(make_plan(state, config), state);
    ASSERT_FALSE(state.jobs[0].held.empty());
    const NodeId home = state.jobs[0].held[0].node;
    let_go_of_node(state, home);
    int left = 0;
    for (int round = 0; round < 20; ++round) {
      const Plan plan = make_plan(state, config);
      EXPECT_EQ(why_infeasible(state, plan), "");
      for (const Action& action : plan.actions) {
        if (!std::holds_alternative<LeavesNode>(action.cause)) continue;
        ++left;
        EXPECT_EQ(action.kind, ActionKind::kRepair);
        EXPECT_EQ(action.add.size(), action.remove.size());
      }
      play(plan, state);
    }
    EXPECT_EQ(pods_held_on(state, home), 0);
    EXPECT_LE(left, 2);  // each job once
    EXPECT_EQ(effective_gpus(state.jobs[0]), 2);
    EXPECT_GE(effective_gpus(state.jobs[1]), 1);
  }
}

bool is_plain(const ClusterState& state, const Job& job) {
  return !job.topology && !job.one_node && !job.mix && !job.eligible && job.avoid.empty() &&
         std::ranges::all_of(state.queues,
                             [](const auto& one) { return one.second.quotas.empty(); });
}

// Whether it would have its minimum with what is free elsewhere.
bool could_leave(const ClusterState& state, const Job& job) {
  Gpus gpus = 0;
  for (const Held& held : job.held) {
    const Node& node = *std::ranges::find(state.nodes, held.node, &Node::id);
    if (!node.leaving) gpus += held.gpus;
  }
  for (const Node& node : state.nodes)
    if (node.schedulable && node.gpu_type == job.held.front().gpu_type)
      gpus += node.free.copies_of(job.per_pod) * job.per_pod.gpus;
  return size_at_most(job, std::min(gpus, effective_gpus(job))).has_value();
}

// Who leaves has its minimum then; who stays could not leave, and is told so.
TEST(EveryPolicy, StopsNobodyForANodeThatIsAboutToGo) {
  constexpr std::uint64_t kFirst = 60;
  int left = 0, stayed = 0;
  for (std::uint64_t seed = 1; seed <= seeds_of_all_policies(kFirst); ++seed) {
    const PolicyConfig config = policy_of_seed(seed, kFirst);
    SCOPED_TRACE(config.policy + ", seed " + std::to_string(seed));
    ClusterState state = drawn_cluster(seed, config);
    play({}, state);
    let_go_of_node(state, state.nodes[seed % state.nodes.size()].id);
    for (int round = 0; round < 6; ++round) {
      const Plan plan = make_plan(state, config);
      Books(state, plan).expect_sound();
      std::set<JobId> changed;
      for (const Action& action : plan.actions) {
        changed.insert(action.job);
        if (!std::holds_alternative<LeavesNode>(action.cause)) continue;
        const Job& job = *std::ranges::find(state.jobs, action.job, &Job::id);
        const Gpus after = effective_gpus(job) +
                           (std::ssize(action.add) - std::ssize(action.remove)) * job.per_pod.gpus;
        EXPECT_EQ(size_at_most(job, after), after) << job.id;
        ++left;
      }
      for (std::size_t i = 0; i < state.jobs.size(); ++i) {
        const Job& job = state.jobs[i];
        const bool is_there = std::ranges::any_of(job.held, [&](const Held& held) {
          return std::ranges::find(state.nodes, held.node, &Node::id)->leaving;
        });
        if (!is_there || changed.contains(job.id)) continue;
        EXPECT_EQ(plan.verdicts[i].reason, Reason::kNodeLeaves) << job.id;
        const bool is_still =
            plan.actions.empty() && std::ranges::all_of(plan.verdicts, [](const Verdict& verdict) {
              return verdict.outcome == Outcome::kPlaced;
            });
        if (is_still && is_plain(state, job)) {
          EXPECT_FALSE(could_leave(state, job)) << job.id;
        }
        ++stayed;
      }
      ASSERT_FALSE(HasFailure());
      play(plan, state);
    }
  }
  EXPECT_GT(left, 20);
  EXPECT_GT(stayed, 20);
}

}  // namespace
}  // namespace rubato::sched
