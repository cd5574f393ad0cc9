// The policy `pollux`. Its search has its own test, against all choices: genetic_sizes_test.cc.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

// Goodput of 1, 2, … GPUs of type A.
Job with_goodput(Job job, const std::vector<double>& goodput) {
  for (std::size_t i = 0; i < goodput.size(); ++i)
    job.goodput.push_back({"A", static_cast<Gpus>(i + 1), 0, goodput[i]});
  return job;
}

// Fair shares are 3 of 6 GPUs; `flat` has 0.8 of its speed there on one GPU, `steep` a third.
ClusterState steep_and_flat() {
  ClusterState state =
      cluster({node("n1", 6, 6)}, {with_goodput(job("steep", 1, 6), {1, 2, 3, 4, 5, 6}),
                                   with_goodput(job("flat", 1, 6), {8, 9, 10, 10.4, 11, 11})});
  state.now_ms = 1'000'000;
  return state;
}

// Sums of inverse speedups: 5 + 1 has 3/5 + 10/8 = 1.85, 4 + 2 has 3/4 + 10/9 = 1.861, 3 + 3 has 2.
TEST(Pollux, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = steep_and_flat();
  EXPECT_EQ(sizes_after(state, "pollux"), (Sizes{{"steep", 5}, {"flat", 1}}));
  EXPECT_EQ(who_plans_the_same(state, "pollux"), Nobody{});
}

// Its mechanism is the power mean: where the least speedup is nearly all that counts, both have 3.
TEST(Pollux, AnotherMeanGivesOtherSizes) {
  EXPECT_EQ(targets_of(steep_and_flat(), "pollux", {{"fairness", -10}}).sizes,
            (std::vector<Gpus>{3, 3}));
}

// 60 s of life, 30 s a change: more GPUs would have to bring more than they cost.
TEST(Pollux, AChangeCostsWhatRestartsTake) {
  ClusterState state =
      cluster({node("n1", 2, 1)}, {with_goodput(running("a", 1, 2, {"n1"}), {1, 1.6})});
  state.now_ms = 60'000;
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{2});  // 60 / 90 * 1.6 > 1
  state.jobs[0].restarts = 1;                                          // 30 / 90 * 1.6 < 1
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{1});
  EXPECT_EQ(targets_of(state, "pollux", {{"restartSeconds", 0}}).sizes, std::vector<Gpus>{2});
}

// Two GPUs on each of two nodes do half of what four on one do, and the other job may move, too.
ClusterState torn() {
  Job a = running("a", 1, 4, {"n1", "n1", "n2", "n2"});
  a.goodput = {{"A", 1, 1, 1}, {"A", 2, 1, 2}, {"A", 3, 1, 3}, {"A", 4, 1, 4}, {"A", 4, 2, 2}};
  ClusterState state = cluster({node("n1", 4, 2), node("n2", 4, 1)},
                               {a, with_goodput(running("b", 1, 1, {"n2"}), {1})});
  state.now_ms = 10'000'000;
  return state;
}

TEST(Pollux, WhoIsTornApartMovesTogether) {
  const ClusterState state = torn();
  const Targets targets = targets_of(state, "pollux");
  EXPECT_EQ(targets.sizes, (std::vector<Gpus>{4, 1}));
  EXPECT_EQ(targets.places[0], std::vector<NodeIndex>(4, NodeIndex{0}));
  EXPECT_EQ(targets.places[1], std::vector<NodeIndex>(1, NodeIndex{1}));
  const Plan plan = make_plan(state, {.policy = "pollux"});
  ASSERT_EQ(plan.actions.size(), 1u);  // first it leaves n2
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{2, 3}));
  ClusterState then = state;
  std::erase_if(then.jobs[0].held, [](const Held& pod) { return pod.node == "n2"; });
  then.nodes[1].free.gpus = 3;
  EXPECT_EQ(sizes_after(then, "pollux"), (Sizes{{"a", 4}, {"b", 1}}));
  for (const Action& action : make_plan(then, {.policy = "pollux"}).actions)
    for (const Placement& placed : action.add) EXPECT_EQ(placed.node, "n1");
}

// Where CPU may run out, or a job may not be everywhere, nobody is told to move.
TEST(Pollux, SaysNoPlacesWhereNotEveryNodeServesEveryJob) {
  ClusterState state = torn();
  state.jobs[1].eligible = {"n2"};
  EXPECT_EQ(targets_of(state, "pollux").places[0], std::nullopt);
  EXPECT_TRUE(make_plan(state, {.policy = "pollux"}).actions.empty());
  state = torn();
  state.nodes[0].free.cpu = 199;
  EXPECT_EQ(targets_of(state, "pollux").places[0], std::nullopt);
}

// Its pods at their places are fewer than its minimum: it stops, and waits for the rest to leave.
TEST(Pollux, WhoMovesAltogetherStopsFirst) {
  ClusterState state = torn();
  state.jobs[0].min = 3;
  const Plan plan = make_plan(state, {.policy = "pollux"});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].remove.size(), 4u);
  EXPECT_EQ(plan.verdicts[0].outcome, Outcome::kNotNow);
  EXPECT_TRUE(make_plan(state, {.policy = "pollux", .preempt = false}).actions.empty());
}

// Says on which node the only pod of each job is to be.
class ToldPlaces : public Policy {
 public:
  explicit ToldPlaces(std::vector<std::uint32_t> nodes) : nodes_(std::move(nodes)) {}
  Targets decide(const Problem& problem) const override {
    Targets targets;
    for (JobIndex j; j < problem.end_of_jobs(); ++j) {
      targets.order.push_back(j);
      targets.sizes.push_back(1);
      targets.places.push_back(std::vector{NodeIndex{nodes_[j.value]}});
    }
    return targets;
  }

 private:
  std::vector<std::uint32_t> nodes_;
};

// A pod that leaves n1 holds up whom n1 is for, and nobody else: b's node is taken by a stranger,
// and it starts elsewhere.
TEST(Places, APodThatLeavesHoldsUpItsOwnNodeOnly) {
  Job leaver = running("x", 1, 1, {"n1"});
  leaver.held[0].leaving = true;
  leaver.refused = "suspended";
  const auto state = cluster({node("n1", 1, 0), node("n2", 1, 0), node("n3", 1, 1)},
                             {leaver, job("a", 1, 1), job("b", 1, 1)});
  const Plan plan = make_plan(state, ToldPlaces({0, 0, 1}), {.policy = "told"});
  EXPECT_EQ(plan.verdicts[1].reason, Reason::kWaitingForRelease);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "b");
  EXPECT_EQ(plan.actions[0].add[0].node, "n3");
}

// At most twice what was measured, and the minimum where nothing was.
TEST(Pollux, TriesTwiceWhatWasMeasured) {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  state.now_ms = 1'000'000;
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{1});
  state.jobs[0].measured = {{"A", 2, 100}};
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{4});
}

TEST(Pollux, OfThoseThatCannotAllRunThoseWithLeastGpuTimeDo) {
  ClusterState state = cluster({node("n1", 1, 1)}, {job("a", 1, 1), job("b", 1, 1)});
  state.jobs[0].attained_gpu_ms = 5;
  EXPECT_EQ(sizes_after(state, "pollux"), (Sizes{{"b", 1}}));
}

// "small" has the best sizes but the lower priority, so both others are left out: the one that runs
// is not stopped for its equal that has had nothing yet, or they would take turns without training.
TEST(Pollux, WhoIsLeftOutStopsNobody) {
  ClusterState state = cluster(
      {node("n1", 2, 0), node("n2", 2, 0)},
      {running("runs", 4, 4, {"n1", "n1", "n2", "n2"}), job("waits", 4, 4), job("small", 1, 3)});
  for (std::size_t i : {0U, 1U}) state.jobs[i].measured = {{"A", 4, 4}};
  state.jobs[2].measured = {{"A", 1, 10}, {"A", 3, 17.3}};
  state.jobs[2].priority = -5;
  state.jobs[0].attained_gpu_ms = 120'000;
  state.now_ms = 200'000;
  EXPECT_EQ(targets_of(state, "pollux").sizes, (std::vector<Gpus>{0, 0, 3}));
  EXPECT_TRUE(make_plan(state, {.policy = "pollux"}).actions.empty());
}

// Where a change is taken to cost nothing both are worth the same.
TEST(Pollux, OfEqualsTheOneThatRunsStays) {
  ClusterState state =
      cluster({node("n1", 1, 0)}, {running("runs", 1, 1, {"n1"}), job("waits", 1, 1)});
  state.jobs[0].attained_gpu_ms = 120'000;
  state.now_ms = 200'000;
  for (const double fairness : {-10.0, -1.0, 1.0})
    EXPECT_EQ(targets_of(state, "pollux", {{"fairness", fairness}, {"restartSeconds", 0}}).sizes,
              (std::vector<Gpus>{1, 0}))
        << fairness;
}

// To look at each GPU of a node, or at each size of a job, would take minutes to hours.
TEST(Pollux, OddClustersAreDecidedInSeconds) {
  constexpr Gpus kMost = 1'048'576;
  const auto known = [](Gpus min, Gpus max, std::size_t i) {
    Job one = job("j" + std::to_string(i), min, max);
    const double speed = 1 + static_cast<double>(i) / 10;
    one.measured = {{"A", 1, speed}, {"A", max, speed * static_cast<double>(max) * 0.6}};
    one.per_pod = {.gpus = 1};
    return one;
  };
  std::vector<ClusterState> states;
  states.push_back(cluster({node("n1", kMost, kMost)}, {}));
  for (std::size_t i = 0; i < 8; ++i) states.back().jobs.push_back(known(1, kMost, i));
  states.push_back(cluster({node("n1", kMost, kMost), node("n2", 7, 7)}, {}));
  for (std::size_t i = 0; i <= 20; i += 4)
    states.back().jobs.push_back(known(Gpus{1} << i, kMost, i));
  states.push_back(cluster({}, {}));
  for (int i = 0; i < 2000; ++i)
    states.back().nodes.push_back(node("n" + std::to_string(10'000 + i), 8, 8));
  for (std::size_t i = 0; i < 8; ++i) states.back().jobs.push_back(known(1, 16'000, i));
  for (ClusterState& state : states) {
    for (Node& one : state.nodes) one.free = {.gpus = one.gpus_total};
    state.now_ms = 1'000'000;
    const Targets targets = targets_of(state, "pollux");
    Gpus sum = 0;
    Gpus all = 0;
    for (const Gpus size : targets.sizes) sum += size;
    for (const Node& one : state.nodes) all += one.gpus_total;
    EXPECT_LE(sum, all);
    EXPECT_GE(sum, all / 2);
  }
}

// Sizes above 2048 are tried in steps, and what it has beside them.
TEST(Pollux, WhatAJobHoldsIsTriedHoweverLargeItIs) {
  ClusterState state = cluster({node("n1", 100'000, 60'000)}, {job("a", 1, 100'000)});
  state.jobs[0].started = true;
  state.jobs[0].held = {{.ordinal = 0, .node = "n1", .gpu_type = "A", .gpus = 40'001}};
  state.jobs[0].measured = {{"A", 1, 1}, {"A", 40'001, 40'001}};
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{40'001});  // it has just come
}

TEST(Pollux, TargetsFit) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    const Targets targets = targets_of(state, "pollux");
    Gpus sum = 0;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const Gpus size = targets.sizes[i];
      sum += size;
      EXPECT_TRUE(size == 0 || (size >= state.jobs[i].min && size <= state.jobs[i].max));
    }
    EXPECT_LE(sum, 8 * std::ssize(state.nodes));
  }
}

}  // namespace
}  // namespace rubato::sched
