// The policy `rubato`: who goes first, how many GPUs each gets, and what that makes of running
// jobs.
#include "scheduler/plan.h"
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <map>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Plan plan_of(const ClusterState& state) { return make_plan(state, {.policy = "rubato"}); }

// Twice the GPUs, twice the speed.
Job scaling(Job j) {
  for (const Gpus n : {1, 2, 4, 8}) j.measured.push_back({"A", n, 100.0 * static_cast<double>(n)});
  return j;
}

std::map<JobId, std::int64_t> changes(const Plan& plan) {
  std::map<JobId, std::int64_t> by_job;
  for (const Action& action : plan.actions)
    by_job[action.job] += std::ssize(action.add) - std::ssize(action.remove);
  return by_job;
}

using Changes = std::map<JobId, std::int64_t>;

TEST(Rubato, AnEmptyClusterGivesAJobAllThatMakesItFaster) {
  const Job fast = lasting(scaling(job("a", 1, 16)), 1'000'000);
  EXPECT_EQ(changes(plan_of(cluster({node("n1", 8, 8)}, {fast}))), (Changes{{"a", 8}}));
  Job slow = lasting(job("a", 1, 16), 1'000'000);
  slow.measured = {{"A", 1, 100}, {"A", 2, 150}, {"A", 4, 140}, {"A", 8, 130}};
  EXPECT_EQ(changes(plan_of(cluster({node("n1", 8, 8)}, {slow}))), (Changes{{"a", 2}}));
}

// What makes a job a little faster is more to one that waits.
TEST(Rubato, TheMoreJobsWaitTheFewerGpusEachGets) {
  std::vector<std::int64_t> first;
  for (const int many : {1, 8, 32}) {
    std::vector<Job> jobs;
    for (int i = 0; i < many; ++i)
      jobs.push_back(lasting(job("j" + std::to_string(10 + i), 1, 8), 1'000'000));
    for (Job& one : jobs) one.measured = {{"A", 1, 100}, {"A", 2, 150}, {"A", 4, 200}};
    first.push_back(changes(plan_of(cluster({node("n1", 8, 8)}, jobs))).at("j10"));
  }
  EXPECT_EQ(first, (std::vector<std::int64_t>{8, 2, 1}));
}

// Five GPUs would be on two nodes; and a job is tried on twice as many GPUs as its table has.
TEST(Rubato, AGoodputTableSaysWhichSizesAreWorthIt) {
  Job torn = lasting(job("a", 1, 16), 1'000'000);
  torn.measured = {{"A", 1, 100}, {"A", 8, 800}};
  for (const Gpus n : {1, 2, 3, 4}) torn.goodput.push_back({"A", n, 1, static_cast<double>(n)});
  for (const Gpus n : {2, 3, 4, 5, 6, 7, 8})
    torn.goodput.push_back({"A", n, 2, 0.5 * static_cast<double>(n)});
  const ClusterState two_nodes = cluster({node("n1", 4, 4), node("n2", 4, 4)}, {torn});
  EXPECT_EQ(changes(plan_of(two_nodes)), (Changes{{"a", 4}}));
  Job young = lasting(job("a", 1, 16), 1'000'000);
  young.goodput = {{"A", 1, 1, 1}, {"A", 2, 1, 2}};
  EXPECT_EQ(changes(plan_of(cluster({node("n1", 8, 8)}, {young}))), (Changes{{"a", 4}}));
}

// Eight GPUs on two nodes are no faster than four on one, but more nodes would be: who looked no
// further than its table would stay on one for ever.
TEST(Rubato, AStepDownAtTheEndOfAGoodputTableHoldsNobodyBack) {
  Job held_back = lasting(job("a", 1, 16), 10'000'000);
  for (const Gpus n : {1, 2, 3, 4})
    held_back.goodput.push_back({"A", n, 1, static_cast<double>(n)});
  for (const Gpus n : {5, 6, 7, 8})
    held_back.goodput.push_back({"A", n, 2, 0.48 * static_cast<double>(n)});
  std::vector<Node> nodes;
  for (const char* name : {"n1", "n2", "n3", "n4"}) nodes.push_back(node(name, 4, 4));
  EXPECT_EQ(changes(plan_of(cluster(nodes, {held_back}))), (Changes{{"a", 16}}));
}

// 100 s left: 60 s without any step, for twice the speed in the rest, are not worth it.
TEST(Rubato, AStallIsPaidForBeforeAChange) {
  Job a = lasting(scaling(running("a", 1, 2, {"n1"})), 100'000);
  a.allocated_ms = 0;
  const ClusterState state = cluster({node("n1", 2, 1)}, {a});
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"a", 1}}));
  EXPECT_TRUE(
      make_plan(state, {.policy = "rubato", .parameters = {{"stallSeconds", 60}}}).actions.empty());
}

// Twice as fast on 8 GPUs as on 4, where a job beside it needs 5 of the 8: not 3, for which it
// would stop twice; the other one keeps what it is to have.
TEST(Rubato, AJobStartsAtItsSizeOrWaits) {
  std::vector<NodeId> five(5, "n1");
  Job holds = lasting(running("holds", 1, 5, five), 50'000'000);
  for (const Gpus n : {1, 2, 3, 4, 5})
    holds.measured.push_back({"A", n, 100.0 * static_cast<double>(n)});
  Job comes = lasting(job("comes", 1, 4), 10'000'000);
  comes.measured = {{"A", 1, 1}, {"A", 2, 2}, {"A", 3, 3}, {"A", 4, 400}};
  const ClusterState state = cluster({node("n1", 8, 3)}, {holds, comes});
  const Plan plan = plan_of(state);
  for (const Action& action : plan.actions) {
    EXPECT_EQ(action.job, "holds");
    EXPECT_EQ(action.remove.size(), 1u);
  }
  EXPECT_EQ(plan.verdicts.at(1).outcome, Outcome::kNotNow);
}

// Six GPUs are free, and CPU for two pods: what the other one has of it is not given up for a size.
TEST(Rubato, AJobStartsWithWhatFitsWhereNobodyMakesRoomForItsSize) {
  Job holds = lasting(running("holds", 2, 2, {"n1", "n1"}), 10'000'000);
  holds.priority = 1;
  holds.per_pod.cpu = 300;
  ClusterState state =
      cluster({node("n1", 8, 6)}, {holds, lasting(scaling(job("comes", 2, 7)), 10'000'000)});
  state.nodes[0].free.cpu = 200;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"comes", 2}}));
  EXPECT_EQ(effective_gpus(at_rest(state, {.policy = "rubato"}, 10).jobs[1]), 2);
  state.nodes[0].free.cpu = 199;
  EXPECT_EQ(changes(plan_of(state)), Changes{}) << "less than its minimum";
}

// On the slow type it would take ten times as long; once it is moved, it stays.
TEST(Rubato, AJobMovesToTheTypeWhereItIsDoneSooner) {
  Job slow = lasting(running("slow", 1, 1, {"n1"}), 1'000'000);
  slow.allocated_ms = 0;
  slow.measured = {{"A", 1, 10}, {"B", 1, 100}};
  ClusterState state = cluster({node("n1", 1, 0), node("n2", 1, 1, "B")}, {slow});
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"slow", -1}}));
  state.nodes[0].free.gpus = 1;
  state.jobs[0].held.clear();
  state.jobs[0].started = false;
  const Plan there = plan_of(state);
  ASSERT_EQ(there.actions.size(), 1u);
  EXPECT_EQ(there.actions[0].add.at(0).node, "n2");
  state.jobs[0].held = {{0, "n2", "B", 1, false, false}};
  state.jobs[0].started = true;
  state.nodes[1].free.gpus = 0;
  EXPECT_TRUE(plan_of(state).actions.empty());
}

// Pods of others hold the CPU of the type where it would be done sooner: it neither waits for that
// type nor stops for it.
TEST(Rubato, AJobDoesNotChooseATypeWithoutRoomForItsPods) {
  Job a = lasting(job("a", 1, 1), 1'000'000);
  a.measured = {{"A", 1, 10}, {"B", 1, 100}};
  ClusterState state = cluster({node("n1", 1, 1), node("n2", 4, 4, "B")}, {a});
  state.nodes[1].free.cpu = 50;
  const Plan start = plan_of(state);
  ASSERT_EQ(start.actions.size(), 1u);
  EXPECT_EQ(start.actions[0].add.at(0).node, "n1");
  state.jobs[0].held = {{0, "n1", "A", 1, false, false}};
  state.jobs[0].started = true;
  state.jobs[0].allocated_ms = 0;
  state.nodes[0].free.gpus = 0;
  EXPECT_TRUE(plan_of(state).actions.empty());
  // What it holds itself is room for it: the CPU went to others since.
  state.jobs[0].held = {{0, "n2", "B", 1, false, false}};
  state.nodes[0].free.gpus = 1;
  state.nodes[1].free = {3, 0, 1 << 30};
  EXPECT_TRUE(plan_of(state).actions.empty());
}

// Its queue has its cells and no more, and all of them are of the slow type.
TEST(Rubato, ATypeOfWhichItsQueueHasNoCellsIsNoChoice) {
  Job a = lasting(job("a", 1, 2), 1'000'000);
  a.measured = {{"A", 1, 100}, {"B", 1, 10}};
  ClusterState state = cluster({node("n1", 4, 4, "A"), node("n2", 4, 4, "B")}, {a});
  Queue& queue = state.queues["default"];
  queue.cells = {{.gpu_type = "B", .level = kNodeLevel, .count = 1}};
  queue.borrowing = false;
  const Plan plan = plan_of(state);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.at(0).node, "n2");
}

// Who gains most by it has the fast type, also where both would be faster there.
// Where all others are slower it may be faster, and nobody knows before it was there.
// Nor for a size that its queue does not let it have: there it would have what it has here.
TEST(Rubato, AJobDoesNotMoveForMoreThanItsQueueMayHave) {
  Job a = lasting(running("a", 3, 4, {"n1", "n1", "n1"}), 6380);
  a.measured = {{"A", 3, 32.9}, {"B", 3, 32.9}};
  a.start_ms = a.join_ms = 0;
  a.stall_ms = 1000;
  a.allocated_ms = 0;
  ClusterState state = cluster({node("n1", 4, 1, "A"), node("n2", 4, 4, "B")}, {a});
  EXPECT_FALSE(plan_of(state).actions.empty()) << "four of the other type are faster";
  state.queues["default"].quotas["*"].limit = 3;
  EXPECT_TRUE(plan_of(state).actions.empty());
}

TEST(Rubato, ATypeOnWhichOthersAreSlowerIsTriedOnce) {
  const auto other = [](const std::string& id) {
    Job j = running(id, 1, 1, {"n1"});
    j.remaining_ms = 60'000;  // too little to go
    j.measured = {{"A", 1, 100}, {"B", 1, 40}};
    return j;
  };
  Job unlike = lasting(running("unlike", 1, 1, {"n1"}), 36'000'000);
  unlike.measured = {{"A", 1, 100}};
  ClusterState state = cluster({node("n1", 4, 0), node("n2", 1, 1, "B")},
                               {other("a"), other("b"), other("c"), unlike});
  const Plan plan = plan_of(state);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "unlike");
  EXPECT_EQ(std::get<ChangesType>(plan.actions[0].cause).to, "B");
  const auto without = [&] {
    return make_plan(state, {.policy = "rubato", .parameters = {{"exploration", 0}}});
  };
  EXPECT_TRUE(without().actions.empty());
  state.nodes[1].free = {};
  EXPECT_TRUE(plan_of(state).actions.empty()) << "nothing is free for a try";

  // It has left, and starts where it wanted to; there it stays until it was measured.
  Job& tries = state.jobs[3];
  tries.held.clear();
  state.nodes[0].free = state.nodes[1].free = {1, 64000, 1 << 30};
  const Plan start = plan_of(state);
  ASSERT_EQ(start.actions.size(), 1u);
  EXPECT_EQ(start.actions[0].add.at(0).gpu_type, "B");
  tries.held = {{0, "n2", "B", 1, false, false}};
  state.nodes[1].free = {};
  EXPECT_TRUE(plan_of(state).actions.empty());
  tries.measured.push_back({"B", 1, 30});
  ASSERT_EQ(plan_of(state).actions.size(), 1u) << "it is slower there, like the others";
  tries.measured.back().tokens_per_second = 220;
  EXPECT_TRUE(plan_of(state).actions.empty());
}

// Once stopped each would be served after the other.
TEST(Rubato, SeveralThatAreAlikeTryATypeAtOnce) {
  ClusterState state = cluster({node("n1", 2, 0), node("n2", 2, 2, "B")}, {});
  for (const char* id : {"a", "b"}) {
    Job one = lasting(running(id, 1, 1, {"n1"}), 36'000'000);
    one.measured = {{"A", 1, 100}};
    state.jobs.push_back(one);
  }
  EXPECT_EQ(plan_of(state).actions.size(), 2u);
}

// Else it goes only where it has more.
TEST(Rubato, WhereNotAllCanKeepWhatTheyHoldAJobGoesToASlowerType) {
  Job a = lasting(running("a", 1, 1, {"n1"}), 36'000'000);
  a.measured = {{"A", 1, 100}, {"B", 1, 60}};
  ClusterState state = cluster({node("n1", 1, 0), node("n2", 1, 1, "B")}, {a});
  EXPECT_TRUE(plan_of(state).actions.empty());
  ClusterState limited = state;
  limited.queues["default"].quotas["A"].limit = 0;
  state.nodes[0].leaving = true;
  state.nodes[0].schedulable = false;
  for (const ClusterState& one : {state, limited}) {
    const Plan plan = plan_of(one);
    ASSERT_EQ(plan.actions.size(), 1u);
    EXPECT_EQ(std::get<ChangesType>(plan.actions[0].cause).to, "B");
  }
}

// Nothing is known of it on C, and A, where it was, has no node: whether it waits or runs on B, it
// gains by GPUs on C as on B.
TEST(Rubato, AJobThatRunsLooksAtTypesAsIfItWaited) {
  Job waits = lasting(job("j", 1, 4), 15'000'000);
  waits.measured = {{"B", 1, 20}, {"B", 4, 60.6}, {"A", 1, 10}, {"A", 4, 23}};
  ClusterState state = cluster({node("n1", 8, 8, "B"), node("n2", 8, 8, "C")}, {waits});
  const auto type_of = [](const ClusterState& one) {
    const auto type = targets_of(one, "rubato").types[0];
    return type ? Problem(one).name(*type) : "";
  };
  EXPECT_EQ(type_of(state), "C") << "it has long to go, and tries it";
  ClusterState on_b = state;
  on_b.nodes[0].free.gpus = 4;
  on_b.jobs[0].started = true;
  on_b.jobs[0].allocated_ms = 0;
  for (std::int64_t i = 0; i < 4; ++i) on_b.jobs[0].held.push_back({i, "n1", "B", 1});
  EXPECT_EQ(type_of(on_b), "C");
  for (const double exploration : {0.0, 0.2}) {
    const PolicyConfig config{.policy = "rubato", .parameters = {{"exploration", exploration}}};
    for (const ClusterState& from : {state, on_b})
      EXPECT_TRUE(make_plan(at_rest(from, config, 6), config).actions.empty()) << exploration;
  }
}

// Two of three jobs want four GPUs on a node at a time, and only n0 has them, once. The third comes
// first; of its pods there is room for two on n0 and one on n1: six GPUs. What it can never have it
// does not claim, or both others would be left out, and take turns.
TEST(Rubato, NobodyClaimsMoreThanItsPodsHaveRoomFor) {
  const auto of_pods = [](Job one, Gpus per_pod, double weight) {
    one.per_pod.gpus = per_pod;
    one.weight = weight;
    return one;
  };
  Job first = of_pods(job("first", 2, 10), 2, 1);
  first.per_pod.others[0] = 1;
  first.shape = Shape::kPowersOfTwo;
  first.priority = 2;
  first.stall_ms = 68'207;
  first.start_ms = 99'266;
  Job known = lasting(of_pods(job("known", 1, 9), 4, 100), 7'383'099);
  known.measured = {{"A", 2, 1.5}, {"A", 8, 42.9}};
  Job unknown = of_pods(job("unknown", 1, 9), 4, 100);
  unknown.attained_gpu_ms = 2'400'000;
  for (const Gpus least : {2, 8}) {  // 8: it has no room at all, and claims nothing
    first.min = least;
    ClusterState state = cluster({node("n0", 7, 7), node("n1", 3, 3)}, {first, known, unknown});
    state.nodes[0].free.others[0] = 2;
    state.nodes[1].free.others[0] = 110;
    EXPECT_EQ(targets_of(state, "rubato").sizes[0], least == 2 ? 4 : 0);
    const PolicyConfig config{.policy = "rubato"};
    EXPECT_TRUE(make_plan(at_rest(state, config, 12), config).actions.empty()) << least;
  }
}

// A GPU of the other type is free, but the CPU of its node is not: another job holds it.
TEST(Rubato, ATypeIsTriedOnlyWhereItsPodsHaveRoom) {
  Job other = lasting(running("other", 1, 1, {"n2"}), 36'000'000);
  other.held[0].gpu_type = "B";
  other.allow = {"B"};
  other.measured = {{"A", 1, 100}, {"B", 1, 40}};
  Job one = lasting(running("j", 1, 1, {"n1"}), 36'000'000);
  one.measured = {{"A", 1, 100}};
  ClusterState state = cluster({node("n1", 1, 0), node("n2", 2, 1, "B")}, {one, other});
  const auto type = [&] { return Problem(state).name(*targets_of(state, "rubato").types[0]); };
  EXPECT_EQ(type(), "B");
  state.nodes[1].free.cpu = 50;
  EXPECT_EQ(type(), "A");
}

TEST(Rubato, AFastTypeGoesToWhoGainsMost) {
  Job little = lasting(job("little", 1, 1), 1'000'000);
  little.measured = {{"A", 1, 100}, {"B", 1, 110}};
  Job much = lasting(job("much", 1, 1), 1'000'000);
  much.measured = {{"A", 1, 100}, {"B", 1, 500}};
  const Plan plan = plan_of(cluster({node("n1", 1, 1), node("n2", 1, 1, "B")}, {little, much}));
  std::map<JobId, NodeId> where;
  for (const Action& action : plan.actions) where[action.job] = action.add.at(0).node;
  EXPECT_EQ(where, (std::map<JobId, NodeId>{{"little", "n1"}, {"much", "n2"}}));
}

// Free GPUs are worth two stalls if they save more than that within ten minutes. How long a stall
// is was measured of this job, of another, or of none.
TEST(Rubato, GrowthIsWorthWhatStallsWereMeasuredToCost) {
  Job a = lasting(running("a", 1, 2, {"n1"}), 10'000'000);
  a.allocated_ms = 0;
  a.measured = {{"A", 1, 100}, {"A", 2, 115}};
  Job b = lasting(running("b", 1, 1, {"n2"}), 10'000'000);
  ClusterState state = cluster({node("n1", 2, 1), node("n2", 1, 0)}, {a, b});
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"a", 1}}));
  state.jobs[1].stall_ms = 200'000;
  EXPECT_TRUE(plan_of(state).actions.empty());
  state.jobs[0].stall_ms = 500;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"a", 1}}));
}

// Who is done before newcomers would take part does not grow. How long these take was measured of
// this job when it grew or started, of another, or of none.
TEST(Rubato, GrowthIsWorthHowLongStartsWereMeasuredToTake) {
  Job a = lasting(running("a", 1, 2, {"n1"}), 20'000);
  a.measured = {{"A", 1, 100}, {"A", 2, 190}};
  const Job b = lasting(running("b", 1, 1, {"n2"}), 20'000);
  ClusterState state = cluster({node("n1", 2, 1), node("n2", 1, 0)}, {a, b});
  const Changes none, grows = {{"a", 1}};
  EXPECT_EQ(changes(plan_of(state)), none);
  state.jobs[1].start_ms = 1'000;
  EXPECT_EQ(changes(plan_of(state)), grows);
  state.jobs[0].start_ms = 40'000;
  EXPECT_EQ(changes(plan_of(state)), none);
  state.jobs[0].join_ms = 1'000;
  EXPECT_EQ(changes(plan_of(state)), grows);
}

// Nodes that share one machine's cores: a job takes what is free, however soon it is done and
// whatever speed was measured, and gives it back to who has more use for it.
TEST(Rubato, BelowZeroAGainIsNotAskedFor) {
  const PolicyConfig any_gain{.policy = "rubato", .min_relative_gain = -1};
  const Job brief = lasting(scaling(running("brief", 1, 4, {"n1"})), 2'000);
  ClusterState state = cluster({node("n1", 4, 3)}, {brief});
  EXPECT_TRUE(plan_of(state).actions.empty());
  EXPECT_EQ(changes(make_plan(state, any_gain)), (Changes{{"brief", 3}}));
  Job slow = lasting(running("slow", 1, 4, {"n1"}), 1'000'000);
  slow.measured = {{"A", 1, 100}, {"A", 2, 90}, {"A", 3, 85}, {"A", 4, 80}};
  state.jobs = {slow};
  EXPECT_TRUE(plan_of(state).actions.empty());
  EXPECT_EQ(changes(make_plan(state, any_gain)), (Changes{{"slow", 3}}));
  state = cluster({node("n1", 4, 0)},
                  {lasting(running("slow", 1, 4, {"n1", "n1", "n1", "n1"}), 1'000'000),
                   lasting(scaling(job("comes", 1, 3)), 1'000'000)});
  state.jobs[0].measured = slow.measured;
  EXPECT_EQ(changes(make_plan(state, any_gain)), (Changes{{"slow", -3}}));
}

TEST(Rubato, WhoIsDoneSoonGoesFirstByWeight) {
  Job lng = lasting(job("long", 2, 2), 1'000'000);
  const Job brief = lasting(job("brief", 2, 2), 10'000);
  EXPECT_EQ(changes(plan_of(cluster({node("n1", 2, 2)}, {lng, brief}))), (Changes{{"brief", 2}}));
  lng.weight = 1000;
  EXPECT_EQ(changes(plan_of(cluster({node("n1", 2, 2)}, {lng, brief}))), (Changes{{"long", 2}}));
}

// Unless the difference is within the margin, or the other one has the higher priority.
TEST(Rubato, WhoHasLessWorkLeftPreempts) {
  const auto state = [](TimeMs left, std::int64_t priority) {
    Job holds = lasting(running("holds", 2, 2, {"n1", "n1"}), 1'000'000);
    holds.priority = priority;
    return cluster({node("n1", 2, 0)}, {holds, lasting(job("comes", 2, 2), left)});
  };
  EXPECT_EQ(changes(plan_of(state(10'000, 0))), (Changes{{"holds", -2}}));
  EXPECT_TRUE(plan_of(state(900'000, 0)).actions.empty());
  EXPECT_TRUE(plan_of(state(10'000, 5)).actions.empty());
}

// A short job comes: it waits until the long one has given back what is to be the short one's, and
// then has it at once.
TEST(Rubato, ALongJobGivesBackWhatIsWorthMoreToAShortOne) {
  std::vector<NodeId> all(8, "n1");
  ClusterState state =
      cluster({node("n1", 8, 0)}, {lasting(scaling(running("long", 1, 8, all)), 100'000'000),
                                   lasting(scaling(job("short", 1, 4)), 2'000'000)});
  const Plan first = plan_of(state);
  ASSERT_EQ(first.actions.size(), 1u);
  EXPECT_EQ(first.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(to_text(first.actions[0].cause), "other jobs gain more from these GPUs");
  EXPECT_EQ(first.actions[0].remove.size(), 4u);
  EXPECT_EQ(first.verdicts.at(1).reason, Reason::kWaitingForRelease);
  for (Held& held : state.jobs[0].held) held.leaving = held.ordinal >= 4;
  EXPECT_TRUE(plan_of(state).actions.empty());  // they are on their way
  state.jobs[0].held.resize(4);
  state.nodes[0].free.gpus = 4;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"short", 4}}));
}

// Nobody gives back for one that may not have it.
TEST(Rubato, WhatNobodyCanUseIsKept) {
  std::vector<NodeId> all(8, "n1");
  const Job lng = lasting(scaling(running("long", 1, 8, all)), 100'000'000);
  Job brief = lasting(scaling(job("short", 1, 4)), 200'000);
  brief.queue = "other";
  ClusterState state = cluster({node("n1", 8, 0)}, {lng, brief});
  EXPECT_TRUE(plan_of(state).actions.empty());  // there is no such queue
  state.queues["other"] = {.name = "other"};
  state.queues["other"].quotas["*"].limit = 2;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"long", -2}}));
  state.jobs[1].avoid = {"n1"};
  EXPECT_TRUE(plan_of(state).actions.empty());
}

TEST(Rubato, WhoHasWaitedTooLongForItsFirstStartGoesFirst) {
  ClusterState state = cluster({node("n1", 2, 2)}, {lasting(job("long", 2, 2), 1'000'000),
                                                    lasting(job("brief", 2, 2), 10'000)});
  state.now_ms = 20'000'000;
  state.jobs[1].queued_at = 19'000;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"long", 2}}));
}

// Nothing says yet how long it takes, and it would lose its start.
TEST(Rubato, WhoHasJustStartedStaysUntilItWasMeasured) {
  Job young = running("young", 2, 2, {"n1", "n1"});
  young.attained_gpu_ms = 6000;
  young.allocated_ms = 0;
  young.start_ms = 10'000;
  ClusterState state = cluster({node("n1", 2, 0)}, {young, lasting(job("short", 1, 2), 60'000)});
  state.now_ms = 69'999;
  EXPECT_EQ(changes(plan_of(state)), (Changes{}));
  state.now_ms = 70'000;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"young", -2}}));
  state.now_ms = 3000;
  state.jobs[0].measured = {{"A", 2, 10}};
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"young", -2}}));
}

// Where the work left is not known, equals do not take turns: a guess holds for a while.
TEST(Rubato, AGuessLastsUntilItIsOutlived) {
  ClusterState state =
      cluster({node("n1", 1, 0)}, {running("holds", 1, 1, {"n1"}), job("comes", 1, 1)});
  state.jobs[0].attained_gpu_ms = 500'000;
  EXPECT_TRUE(plan_of(state).actions.empty());
  state.jobs[0].attained_gpu_ms = 700'000;
  EXPECT_EQ(changes(plan_of(state)), (Changes{{"holds", -1}}));
}

}  // namespace
}  // namespace rubato::sched
