// Who is told "never", and who "not now".
#include "scheduler/fix.h"
#include "scheduler/plan.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

TEST(Never, NoSizeThatItsShapeAllowsIsInTheCluster) {
  Job a = job("a", 3, 8);
  a.shape = Shape::kPowersOfTwo;
  const Told three = told(cluster({node("n1", 3, 3)}, {a}), "a");
  EXPECT_EQ(three.outcome, Outcome::kNever);
  EXPECT_EQ(three.reason, "ExceedsCluster");
  EXPECT_EQ(three.message,
            "needs 4 GPUs (the first size from 3 on that suits shape and perPod); the nodes it may "
            "use have 3 in all: lower spec.gpus.min to 2, or add nodes");
  EXPECT_EQ(told(cluster({node("n1", 4, 4)}, {a}), "a").outcome, Outcome::kPlaced);
  // Where the fourth is on a node that takes no pods now, or that it avoids, waiting helps.
  std::vector<Node> nodes{node("n1", 3, 3), node("n2", 1, 1)};
  nodes[1].schedulable = false;
  EXPECT_EQ(told(cluster(nodes, {a}), "a").reason, "NodesUnavailable");
  nodes[1].schedulable = true;
  a.avoid = {"n2"};
  const Told avoids = told(cluster(nodes, {a}), "a");
  EXPECT_EQ(avoids.outcome, Outcome::kNotNow);
  EXPECT_EQ(avoids.reason, "NodesAvoided");
  EXPECT_TRUE(avoids.message.starts_with("needs 4 GPUs (")) << avoids.message;
}

// What its queue never lets it have is never; what others of its queue hold is not now.
TEST(Never, AMinimumAboveTheLimit) {
  auto state = cluster({node("n1", 8, 6)}, {running("b", 2, 2, {"n1", "n1"}), job("a", 4, 8)});
  state.queues["default"].quotas["*"].limit = 3;
  const Told never = told(state, "a");
  EXPECT_EQ(never.outcome, Outcome::kNever);
  EXPECT_EQ(never.reason, "QueueLimit");
  EXPECT_EQ(never.message,
            "needs 4 GPUs; queue \"default\" lets it have 3 at most: lower spec.gpus.min to 3, or "
            "let the queue hold more");
  state.queues["default"].quotas["*"].limit = 0;
  EXPECT_TRUE(told(state, "a").message.ends_with("have 0 at most: let the queue hold more"));
  state.queues["default"].quotas["*"].limit = 4;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNotNow);
  EXPECT_EQ(told(state, "a").reason, "QueueLimit");
  EXPECT_EQ(told(state, "a").message,
            "queue \"default\" holds 2 GPUs and may take 2 more that this job can use; needed: 4");
}

TEST(Never, LimitsOfTypesAndNodesOfTypesAreSeenTogether) {
  // There are enough of A, and the queue may hold enough of B.
  auto state = cluster({node("n1", 8, 8, "A"), node("n2", 2, 2, "B")}, {job("a", 4, 8)});
  state.queues["default"].quotas["A"].limit = 3;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNever);
  EXPECT_EQ(told(state, "a").reason, "QueueLimit");
  state.jobs[0].mix = true;  // three and two
  EXPECT_EQ(told(state, "a").outcome, Outcome::kPlaced);
  state.jobs[0].per_pod.gpus = 2;  // two and two
  EXPECT_EQ(told(state, "a").outcome, Outcome::kPlaced);
  state.jobs[0].per_pod.gpus = 4;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNever);
  state.jobs[0].mix = false;
  state.jobs[0].per_pod.gpus = 1;
  state.queues["default"].quotas["A"] = {.guaranteed = 5, .limit = std::nullopt};
  state.queues["default"].borrowing = false;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kPlaced);
  state.queues["default"].quotas["A"].guaranteed = 3;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNever);
}

TEST(Never, WithoutANodeForItIsToldSo) {
  Job a = job("a", 2, 2);
  a.eligible.emplace();
  EXPECT_EQ(told(cluster({node("n1", 8, 8)}, {a}), "a").message,
            "needs 2 GPUs; no node that it may use can hold a pod of it: let it use others, or add "
            "some");
}

// Its pods fit one by one, and not together.
Job of_many_cores(Gpus gpus) {
  Job a = job("a", gpus, gpus);
  a.per_pod.cpu = 16000;  // of 64000 that a node has
  return a;
}

TEST(Never, WhereNodesAreKnownToHaveTooLittleCpuForItsGpus) {
  Node known = node("n1", 8, 8);
  known.total = CpuMemory{known.free.cpu, known.free.memory};
  const ClusterState state = cluster({known}, {of_many_cores(8)});
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNever);
  EXPECT_EQ(told(state, "a").reason, "ExceedsCluster");
  EXPECT_EQ(told(state, "a").message,
            "needs 8 GPUs; the nodes it may use have 8 in all, and CPU and memory for 4 of them: "
            "lower spec.gpus.min to 4, or add nodes");
  EXPECT_EQ(fix_of(state, state.jobs[0]), Fix{LowerMin{4}});
  EXPECT_EQ(told(cluster({known}, {of_many_cores(4)}), "a").outcome, Outcome::kPlaced);
  Job large = of_many_cores(1);
  large.per_pod.cpu = 96000;
  EXPECT_EQ(told(cluster({known}, {large}), "a").message,
            "needs 1 GPU; no node that it may use can hold a pod of it: let it use others, or add "
            "some");
  EXPECT_EQ(fix_of(cluster({known}, {large}), large), (Fix{AddGpus{"A", 1, false}}));
}

// Nobody else holds its GPUs, and nobody waits behind it.
TEST(NotNow, WhatNodesHaveBesideGpusIsNotEnoughThoughNobodyElseIsThere) {
  ClusterState state = cluster({node("n1", 8, 8)}, {of_many_cores(8), job("b", 1, 1)});
  const Plan plan = make_plan(state, {.policy = "fifo"});
  EXPECT_EQ(told(state, plan, "a").outcome, Outcome::kNotNow);
  EXPECT_EQ(told(state, plan, "a").reason, "NodesUnavailable");
  EXPECT_EQ(told(state, plan, "a").message,
            "needs 8 GPUs; the nodes it may use that take pods now have 8 in all, and CPU, memory "
            "and pod slots for 4 of them, beside pods of no job here: lower spec.gpus.min to 4, or "
            "let a pod of it ask for less of these, or add nodes");
  EXPECT_EQ(told(state, plan, "b").outcome, Outcome::kPlaced);
  // What jobs hold comes free one day, and so does what those hold that are not here any more.
  state.queues["default"].held_by_leavers["A"] = 1;
  EXPECT_EQ(told(state, "a").reason, "InsufficientGPUs");
  Job other = running("b", 1, 1, {"n1"});
  other.per_pod.cpu = 32000;
  Node busy = node("n1", 8, 7);
  busy.free.cpu -= other.per_pod.cpu;
  EXPECT_EQ(told(cluster({busy}, {of_many_cores(4), other}), "a").reason, "InsufficientGPUs");
}

// Found by fuzzing: it "grew" by no pod as often as a round may grow jobs.
TEST(NotNow, LessThanAPodIsNoGrowth) {
  Job a = running("a", 1, 8, {"n1", "n1"});
  a.per_pod.gpus = 3;
  const auto state = cluster({node("n1", 8, 6)}, {a});
  EXPECT_TRUE(make_plan(state, {.grown_per_round = std::int64_t{1} << 53}).actions.empty());
}

// Not that others hold what it needs: no end of theirs helps.
TEST(NotNow, NodesThatTakePodsAreCountedWithWhatItHoldsOnOthers) {
  Node cordoned = node("n2", 2, 1);
  cordoned.schedulable = false;
  const Job a = running("a", 3, 3, {"n2"});
  const Job b = running("b", 1, 1, {"n1"});
  EXPECT_EQ(told(cluster({node("n1", 1, 0), cordoned}, {a, b}), "a").message,
            "needs 3 GPUs; the nodes it may use that take pods now have 2 in all: others are not "
            "ready, cordoned or tainted");
  EXPECT_EQ(told(cluster({node("n1", 2, 0), cordoned}, {a, b}), "a").reason, "InsufficientGPUs");
  // Its pods are of A: what there is of B is not for it.
  EXPECT_EQ(told(cluster({node("n1", 1, 0), cordoned, node("n3", 8, 8, "B")}, {a, b}), "a").reason,
            "NodesUnavailable");
}

// What is left of one that mixes types binds it to none of them.
TEST(NotNow, AMixedJobIsRepairedOnAnotherTypeThanThoseThatItHolds) {
  Job mixed = running("a", 8, 8, std::vector<NodeId>(4, "n1"));
  mixed.mix = true;
  for (int i = 4; i < 8; ++i) mixed.held.push_back({i, "gone", "B", 1, false, true});
  ClusterState state = cluster({node("n1", 4, 0), node("n2", 8, 8, "C")}, {mixed});
  Plan plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "a").outcome, Outcome::kPlaced) << told(state, plan, "a").message;
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kRepair);
  EXPECT_EQ(plan.actions[0].add.size(), 4u);
  // Another job has what it needs there, and gives it.
  Job elastic = running("b", 1, 8, std::vector<NodeId>(8, "n2"));
  for (Held& held : elastic.held) held.gpu_type = "C";
  state.jobs.push_back(elastic);
  state.nodes[1].free.gpus = 0;
  plan = make_plan(state, {});
  EXPECT_EQ(told(state, plan, "a").reason, "WaitingForRelease");
}

TEST(NotNow, LimitsOfTypesAreSeenTogetherWithTheNodesThatTakePods) {
  Node cordoned = node("n1", 3, 3, "A");
  cordoned.schedulable = false;
  auto state = cluster({cordoned, node("n2", 5, 5, "B")}, {job("a", 3, 3)});
  state.queues["default"].quotas["B"].limit = 2;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kNotNow);
  EXPECT_EQ(told(state, "a").message,
            "queue \"default\" holds 0 GPUs and may take 2 more that this job can use; needed: 3");
  state.nodes[0].schedulable = true;
  EXPECT_EQ(told(state, "a").outcome, Outcome::kPlaced);
  state.jobs[0].avoid = {"n1"};
  EXPECT_EQ(told(state, "a").reason, "QueueLimit");
}

}  // namespace
}  // namespace rubato::sched
