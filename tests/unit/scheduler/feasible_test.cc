// Each rule, by a plan that breaks it and is written by hand; plans that policies make break none
// (policy_invariants_test.cc).
#include "scheduler/certificate/feasible.h"

#include "tests/unit/scheduler/small_clusters.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Pods of one GPU of type A, one on each of these.
Action given(const JobId& id, const std::vector<NodeId>& nodes,
             ActionKind kind = ActionKind::kStart) {
  Action action{.kind = kind, .job = id};
  for (const NodeId& node : nodes) action.add.push_back({node, "A", 1});
  return action;
}

Action taken(const JobId& id, std::vector<std::int64_t> ordinals) {
  return {.kind = ActionKind::kShrink, .job = id, .remove = std::move(ordinals)};
}

std::string why(const ClusterState& state, std::vector<Action> actions) {
  return why_infeasible(state, Plan{.actions = std::move(actions)});
}

// Two nodes of four GPUs; a runs on two of n1, b and c wait.
ClusterState small() {
  return cluster({node("n1", 4, 2), node("n2", 4, 4)},
                 {running("a", 1, 4, {"n1", "n1"}), job("b", 2, 4), job("c", 1, 1)});
}

TEST(Feasible, WhatPoliciesDoIs) {
  const ClusterState state = small();
  EXPECT_EQ(why(state, {}), "");
  EXPECT_EQ(why(state, {given("a", {"n1", "n1"}, ActionKind::kGrow), given("b", {"n2", "n2"})}),
            "");
  EXPECT_EQ(why(state, {taken("a", {1}), given("c", {"n2"})}), "");
  EXPECT_EQ(why(state, {taken("a", {0, 1})}), "");
  for (const char* policy : {"rubato", "fifo"})
    EXPECT_EQ(why_infeasible(state, make_plan(state, {.policy = policy})), "") << policy;
}

TEST(Feasible, ActionsAreOfWhatThereIs) {
  ClusterState state = small();
  EXPECT_EQ(why(state, {given("z", {"n1"})}), "there is no job \"z\"");
  EXPECT_EQ(why(state, {given("c", {"n9"})}), "there is no node \"n9\"");
  EXPECT_EQ(why(state, {given("c", {"n1"}), given("c", {"n2"})}), "job \"c\" has two actions");
  EXPECT_EQ(why(state, {taken("a", {7})}), "job \"a\" holds no pod 7, which is to leave");
  state.nodes[1].gpu_type = "B";
  EXPECT_EQ(why(state, {given("c", {"n2"})}), "node \"n2\" has no GPUs of type \"A\"");
}

TEST(Feasible, NodesHaveRoomBeforeThePlan) {
  ClusterState state = small();
  // Not even where others leave in the same plan.
  EXPECT_EQ(why(state, {taken("a", {1}), given("b", {"n1", "n1", "n1"})}),
            "node \"n1\" has 2 GPUs free, and pods of 3 are placed there");
  EXPECT_EQ(why(state, {given("b", {"n1", "n1"}), given("c", {"n1"})}),
            "node \"n1\" has 2 GPUs free, and pods of 3 are placed there");
  state.nodes[1].free.cpu = 150;
  EXPECT_EQ(why(state, {given("c", {"n2"})}), "");
  EXPECT_EQ(why(state, {given("b", {"n2", "n2"})}),
            "node \"n2\" has less CPU, memory or something else free than pods ask for that "
            "are placed there");
  state.nodes[1].schedulable = false;
  EXPECT_EQ(why(state, {given("c", {"n2"})}),
            "pods are placed on node \"n2\", which takes none now");
}

TEST(Feasible, NobodyIsStartedWhoMayNotBe) {
  ClusterState state = small();
  const auto started = [&] { return why(state, {given("c", {"n2"})}); };
  state.queues["default"].closed = true;
  EXPECT_EQ(started(), "job \"c\" is started, and its queue is closed");
  state.jobs[2].queue = "user";
  state.queues["user"] = {.name = "user", .parent = "default", .of_one_user = true};
  EXPECT_EQ(started(), "job \"c\" is started, and its queue is closed");
  state.jobs[2].started = true;  // what was started runs on
  Action repair = given("c", {"n2"}, ActionKind::kRepair);
  EXPECT_EQ(why(state, {repair}), "");
  state.jobs[2].queue = "none";
  EXPECT_EQ(started(), "job \"c\" is started, and has no queue");
  state.jobs[2].not_admitted = "its namespace is not of the queue";
  EXPECT_EQ(started(), "job \"c\" is started, and its queue does not admit it");
  state.jobs[2].refused = "its shape is wrong";
  EXPECT_EQ(started(), "job \"c\" is started, and is refused");
}

TEST(Feasible, NobodyIsStoppedWhoIsNotToBe) {
  ClusterState state = small();
  Job& a = state.jobs[0];
  a.preemptible = false;
  const std::string refused = "job \"a\" is stopped, and is not to be preempted now";
  EXPECT_EQ(why(state, {taken("a", {0, 1})}), refused);
  EXPECT_EQ(why(state, {taken("a", {1})}), "") << "it keeps its minimum";
  for (Held& held : a.held) held.lost = true;
  EXPECT_EQ(why(state, {taken("a", {0, 1})}), "") << "it has lost all";
  for (Held& held : a.held) held.lost = false;
  a.preemptible = true;
  a.min_run_ms = 10;
  a.running_since_ms = 0;
  state.now_ms = 9;
  EXPECT_EQ(why(state, {taken("a", {0, 1})}), refused);
  state.now_ms = 10;
  EXPECT_EQ(why(state, {taken("a", {0, 1})}), "");
}

TEST(Feasible, SizesAreThoseThatAJobMayHave) {
  ClusterState state = small();
  EXPECT_EQ(why(state, {given("b", {"n2"})}), "job \"b\" is to have 1 GPUs, less than its minimum");
  EXPECT_EQ(why(state, {given("c", {"n1", "n2"})}),
            "job \"c\" is to have 2 GPUs, more than its maximum");
  state.jobs[0].min = 2;
  EXPECT_EQ(why(state, {taken("a", {1})}), "job \"a\" is to have 1 GPUs, less than its minimum");
  state.jobs[0].shape = Shape::kPowersOfTwo;
  EXPECT_EQ(why(state, {given("a", {"n1"}, ActionKind::kGrow)}),
            "job \"a\" is to have 3 GPUs, which is no power of two");
  state.jobs[2].per_pod.gpus = 2;
  EXPECT_EQ(why(state, {given("c", {"n1"})}),
            "job \"c\" is given a pod of 1 GPUs, and asks for pods of 2");
  // What has more than its maximum since before may keep it.
  state.jobs[0].max = 1;
  EXPECT_EQ(why(state, {}), "");
}

TEST(Feasible, PodsAreWhereTheJobMayBe) {
  ClusterState state = small();
  Job& c = state.jobs[2];
  c.allow = {"B"};
  EXPECT_EQ(why(state, {given("c", {"n2"})}),
            "job \"c\" is given GPUs of type \"A\", which it may not use");
  c.allow = {"A"};
  c.eligible = std::set<NodeId>{"n1"};
  const std::string not_there = "job \"c\" is given GPUs on node \"n2\", which it may not use";
  EXPECT_EQ(why(state, {given("c", {"n2"})}), not_there);
  EXPECT_EQ(why(state, {given("c", {"n1"})}), "");
  c.eligible.reset();
  c.avoid = {"n2"};
  EXPECT_EQ(why(state, {given("c", {"n2"})}), not_there);
}

TEST(Feasible, PodsOfOneJobAreTogetherWhereTheyMustBe) {
  ClusterState state = small();
  state.nodes.push_back(node("n3", 4, 4, "B"));
  Action two_types = given("b", {"n2"});
  two_types.add.push_back({"n3", "B", 1});
  const std::string mixes = " is given GPUs of several types, and does not mix them";
  EXPECT_EQ(why(state, {two_types}), "job \"b\"" + mixes);
  Action another_type = given("a", {}, ActionKind::kGrow);
  another_type.add.push_back({"n3", "B", 1});
  EXPECT_EQ(why(state, {another_type}), "job \"a\"" + mixes);
  state.jobs[0].mix = state.jobs[1].mix = true;
  EXPECT_EQ(why(state, {two_types, another_type}), "");

  state.jobs[0].one_node = state.jobs[1].one_node = true;
  const std::string nodes = " is given GPUs on several nodes, and must be on one";
  EXPECT_EQ(why(state, {given("b", {"n1", "n2"})}), "job \"b\"" + nodes);
  EXPECT_EQ(why(state, {given("a", {"n2"}, ActionKind::kGrow)}), "job \"a\"" + nodes);
  EXPECT_EQ(why(state, {given("a", {"n1"}, ActionKind::kGrow)}), "");

  state.jobs[0].one_node = state.jobs[1].one_node = false;
  state.levels = {"zone", "rack"};
  state.jobs[0].topology = state.jobs[1].topology = Topology{"rack", true};
  // Racks of one name in two zones are two.
  state.nodes[0].domains = {{"zone", "x"}, {"rack", "1"}};
  state.nodes[1].domains = {{"zone", "y"}, {"rack", "1"}};
  const std::string racks = " is given GPUs in more than one rack, and must be in one";
  EXPECT_EQ(why(state, {given("b", {"n1", "n2"})}), "job \"b\"" + racks);
  EXPECT_EQ(why(state, {given("a", {"n2"}, ActionKind::kGrow)}), "job \"a\"" + racks);
  EXPECT_EQ(why(state, {another_type}),
            "job \"a\" is given GPUs on node \"n3\", which is in no rack");
  state.nodes[1].domains["zone"] = "x";
  EXPECT_EQ(why(state, {given("b", {"n1", "n2"})}), "");
}

// What was apart since before may stay so, and grow by what is like some of it.
TEST(Feasible, WhatIsApartSinceBeforeBreaksNothing) {
  ClusterState state = small();
  Job& a = state.jobs[0];
  a.held.push_back({2, "n2", "B", 1});
  a.one_node = true;
  EXPECT_EQ(why(state, {taken("a", {1})}), "");
  EXPECT_EQ(why(state, {given("a", {"n1"}, ActionKind::kGrow)}), "");
}

TEST(Feasible, QueuesHaveNoMoreThanTheyMay) {
  ClusterState state = small();
  state.queues["default"].parent = "whole";
  state.queues["whole"] = {.name = "whole"};
  state.queues["whole"].quotas["*"].limit = 3;
  EXPECT_EQ(why(state, {given("b", {"n2", "n2"})}),
            "queue \"whole\" is to have 4 GPUs, and may have 3");
  EXPECT_EQ(why(state, {taken("a", {1}), given("b", {"n2", "n2"})}), "");
  state.queues["whole"].held_by_leavers["A"] = 1;
  EXPECT_EQ(why(state, {given("c", {"n2"})}), "queue \"whole\" is to have 4 GPUs, and may have 3");
  state.queues["whole"].quotas["*"].limit = 1;  // it has three, and is given nothing
  EXPECT_EQ(why(state, {taken("a", {1})}), "");
  state.queues["whole"].quotas.clear();
  state.queues["default"].borrowing = false;
  state.queues["default"].quotas["A"].guaranteed = 2;
  EXPECT_EQ(why(state, {given("c", {"n2"})}),
            "queue \"default\" is to have 3 GPUs of type \"A\", and may have 2");
}

TEST(Feasible, GuestsAreOnGpusThatTheirHostKeeps) {
  ClusterState state = small();
  Action guest = given("c", {"n1"});
  guest.shares_with = "a";
  state.nodes[0].free.gpus = 0;  // it needs none
  EXPECT_EQ(why(state, {guest}), "");
  EXPECT_EQ(why(state, {guest, taken("a", {1})}),
            "others share the GPUs of \"a\", and pods of it are to leave");
  Action too_many = given("b", {"n1", "n1"});
  too_many.shares_with = "a";
  EXPECT_EQ(why(state, {guest, too_many}),
            "more pods share the GPUs of \"a\" on node \"n1\" than it has there");
  guest.shares_with = "z";
  EXPECT_EQ(why(state, {guest}), "job \"c\" is to share GPUs of \"z\", and there is no such job");
}

TEST(Feasible, CellsAreOneQueuesEach) {
  ClusterState state = small();
  state.nodes[0].free.gpus = 4;
  state.jobs[0].held.clear();
  state.jobs[1].queue = state.jobs[2].queue = "own";
  state.queues["own"] = {.name = "own", .borrowing = false};
  state.queues["own"].cells = {{"A", kNodeLevel, 1}};
  const auto in_cells = [](Action action) {
    for (Placement& pod : action.add) pod.cell = kNodeLevel;
    return action;
  };
  EXPECT_EQ(why(state, {in_cells(given("b", {"n2", "n2"}))}), "");
  EXPECT_EQ(why(state, {given("b", {"n2", "n2"})}),
            "queue \"own\" is given GPUs outside its cells, and has nothing else");
  EXPECT_EQ(why(state, {in_cells(given("b", {"n1", "n2"}))}),
            "queue \"own\" is given 2 cells of level node and type \"A\", and has 1");
  state.queues["default"].cells = {{"A", kNodeLevel, 1}};
  EXPECT_EQ(why(state, {in_cells(given("b", {"n2", "n2"})), in_cells(given("a", {"n2"}))}),
            "node \"n2\" is in cells of two queues");
}

}  // namespace
}  // namespace rubato::sched
