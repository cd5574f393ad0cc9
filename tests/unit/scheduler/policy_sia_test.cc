// The policy `sia`. Its solver has its own test, against all choices: choices_test.cc.
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>
#include <limits>

namespace rubato::sched {
namespace {

using PodNodes = std::vector<NodeIndex>;
constexpr NodeIndex kFirst{0}, kSecond{1};

// Goodput of so many GPUs of a type, on as few nodes as hold them.
Job with(Job job, const std::string& type, const std::map<Gpus, double>& goodput) {
  for (const auto& [gpus, per_second] : goodput) job.goodput.push_back({type, gpus, 0, per_second});
  return job;
}

// Sums of inverse roots of 4 GPUs: 2 + 2 has 0.707 + 0.953 = 1.661, 4 and none 0.5 + 1.1 = 1.6.
ClusterState steep_and_nearly_flat() {
  ClusterState state =
      cluster({node("n1", 4, 4)}, {with(job("flat", 1, 4), "A", {{1, 1}, {2, 1.1}, {4, 1.2}}),
                                   with(job("steep", 1, 4), "A", {{1, 1}, {2, 2}, {4, 4}})});
  state.now_ms = 1'000'000;
  return state;
}

TEST(Sia, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = steep_and_nearly_flat();
  EXPECT_EQ(sizes_after(state, "sia"), (Sizes{{"steep", 4}}));
  EXPECT_EQ(who_plans_the_same(state, "sia"), Nobody{});
}

// What a job without GPUs counts: with 1.3 instead of 1.1, 4 and none has 1.8.
TEST(Sia, TheIncentiveLetsMoreJobsRun) {
  EXPECT_EQ(sizes_after(steep_and_nearly_flat(), "sia", {{"incentive", 1.3}}),
            (Sizes{{"flat", 2}, {"steep", 2}}));
}

// Both could have the one GPU of A, on which one is 4 times as fast as on B and the other twice.
ClusterState on_wrong_types() {
  Job gains = with(with(running("gains", 1, 1, {"n2"}), "A", {{1, 4}}), "B", {{1, 1}});
  gains.held[0].gpu_type = "B";
  const Job other = with(with(running("other", 1, 1, {"n1"}), "A", {{1, 2}}), "B", {{1, 1}});
  ClusterState state = cluster({node("n1", 1, 0, "A"), node("n2", 1, 0, "B")}, {gains, other});
  state.now_ms = 1'000'000;
  return state;
}

// They have 1 + 0.707 now. With a restart factor of 1000 / 1030 they would have 0.507 + 1.015.
TEST(Sia, JobsExchangeTheirTypes) {
  ClusterState state = on_wrong_types();
  EXPECT_EQ(targets_of(state, "sia").places,
            (std::vector<std::optional<PodNodes>>{PodNodes{kFirst}, PodNodes{kSecond}}));
  const Plan plan = make_plan(state, {.policy = "sia"});
  ASSERT_EQ(plan.actions.size(), 2u);
  for (const Action& action : plan.actions) EXPECT_EQ(action.kind, ActionKind::kPreempt);
  for (Job& each : state.jobs) {
    each.held.clear();
    each.started = false;
  }
  for (Node& each : state.nodes) each.free.gpus = 1;
  const Plan then = make_plan(state, {.policy = "sia"});
  ASSERT_EQ(then.actions.size(), 2u);
  for (const Action& action : then.actions)
    EXPECT_EQ(action.add.at(0).gpu_type, action.job == "gains" ? "A" : "B");
  EXPECT_TRUE(make_plan(on_wrong_types(), {.policy = "sia", .preempt = false}).actions.empty());
}

// After 30 restarts of 30 s in 1000 s a change leaves them a tenth: 1.6 + 3.2.
TEST(Sia, WhoRestartedOftenStays) {
  ClusterState state = on_wrong_types();
  for (Job& each : state.jobs) each.restarts = 30;
  EXPECT_TRUE(make_plan(state, {.policy = "sia"}).actions.empty());
  EXPECT_EQ(
      make_plan(state, {.policy = "sia", .parameters = {{"restartSeconds", 0}}}).actions.size(),
      2u);
}

// A job that has not lived as long as a restart takes may change at no cost.
TEST(Sia, AYoungJobMayChange) {
  ClusterState state = on_wrong_types();
  for (Job& each : state.jobs) {
    each.restarts = 30;
    each.queued_at = 980;
  }
  EXPECT_EQ(make_plan(state, {.policy = "sia"}).actions.size(), 2u);
}

TEST(Sia, SizesArePowersOfTwoAndWholeNodes) {
  const std::map<Gpus, double> linear = {{1, 1}, {16, 16}};
  const auto size = [&](Gpus min, Gpus max) {
    return targets_of(cluster({node("n1", 4, 4), node("n2", 4, 4), node("n3", 4, 4)},
                              {with(job("a", min, max), "A", linear)}),
                      "sia")
        .sizes[0];
  };
  EXPECT_EQ(size(1, 3), 2);
  EXPECT_EQ(size(1, 7), 4);
  EXPECT_EQ(size(1, 11), 8);
  EXPECT_EQ(size(1, 16), 12);
  EXPECT_EQ(size(3, 3), 3);  // its minimum is a configuration, whatever it is
}

// On several nodes it has whole ones, although each has room for two, and one on its own fits in.
TEST(Sia, WhoSpansNodesHasThemWhole) {
  ClusterState state =
      cluster({node("n1", 4, 4), node("n2", 4, 4), node("n3", 4, 3)},
              {running("small", 1, 1, {"n3"}), with(job("wide", 8, 8), "A", {{8, 8}})});
  const Targets targets = targets_of(state, "sia");
  EXPECT_EQ(targets.places[0], PodNodes{NodeIndex{2}});
  EXPECT_EQ(targets.places[1],
            (PodNodes{kFirst, kFirst, kFirst, kFirst, kSecond, kSecond, kSecond, kSecond}));
}

// Six of eight GPUs are wanted, but no node has four free: one of those that run moves.
TEST(Sia, JobsOfOneNodeMakeRoomForAWholeOne) {
  const ClusterState state =
      cluster({node("n1", 4, 3), node("n2", 4, 3)},
              {running("a", 1, 1, {"n1"}), running("b", 1, 1, {"n2"}), job("whole", 4, 4)});
  const Targets targets = targets_of(state, "sia");
  EXPECT_EQ(targets.places[0], PodNodes{kSecond});
  EXPECT_EQ(targets.places[1], PodNodes{kSecond});
  EXPECT_EQ(targets.places[2], PodNodes(4, kFirst));
}

// Two GPUs on two nodes do half of what two on one do.
TEST(Sia, WhoIsTornApartMovesTogether) {
  Job torn = running("torn", 2, 2, {"n1", "n2"});
  torn.goodput = {{"A", 2, 1, 2}, {"A", 2, 2, 1}};
  ClusterState state = cluster({node("n1", 4, 3), node("n2", 4, 3)}, {torn});
  state.now_ms = 1'000'000;
  EXPECT_EQ(targets_of(state, "sia").places[0], PodNodes(2, kFirst));
  state.jobs[0].restarts = 30;
  EXPECT_EQ(targets_of(state, "sia").places[0], (PodNodes{kFirst, kSecond}));
}

TEST(Sia, TriesTwiceWhatWasMeasured) {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  state.now_ms = 1'000'000;
  EXPECT_EQ(targets_of(state, "sia").sizes, std::vector<Gpus>{1});
  state.jobs[0].measured = {{"A", 2, 100}};
  EXPECT_EQ(targets_of(state, "sia").sizes, std::vector<Gpus>{4});
}

// One GPU of B, on which `other` is twice as fast as on A. `fresh` was not measured there: it is as
// much faster as the mean of the others is, of `other` and of one that may not be there.
std::string who_has_b(double of_third) {
  Job third = with(with(job("third", 1, 1), "A", {{1, 1}}), "B", {{1, of_third}});
  third.allow = {"A"};
  const ClusterState state = cluster({node("n1", 2, 2, "A"), node("n2", 1, 1, "B")},
                                     {with(with(job("other", 1, 1), "A", {{1, 1}}), "B", {{1, 2}}),
                                      with(job("fresh", 1, 1), "A", {{1, 5}}), third});
  const auto types = targets_of(state, "sia").types;
  return types[0] == TypeIndex{1} ? "other" : types[1] == TypeIndex{1} ? "fresh" : "";
}

TEST(Sia, GuessesGoodputOnOtherTypesFromOtherJobs) {
  EXPECT_EQ(who_has_b(9), "fresh");
  EXPECT_EQ(who_has_b(0.1), "other");
}

// Its queue may have 4 of 8 GPUs: 0.707 + 0.707 for two and two, 0.5 + 1.1 for four and none.
TEST(Sia, QueuesHaveWhatTheyMay) {
  const std::map<Gpus, double> linear = {{1, 1}, {2, 2}, {4, 4}};
  ClusterState state = cluster(
      {node("n1", 8, 8)}, {with(job("a", 1, 8), "A", linear), with(job("b", 1, 8), "A", linear)});
  EXPECT_EQ(targets_of(state, "sia").sizes, (std::vector<Gpus>{4, 4}));
  state.queues["default"].quotas["*"].limit = 4;
  EXPECT_EQ(targets_of(state, "sia").sizes, (std::vector<Gpus>{2, 2}));
}

// What both could have is the other's first; a job of a higher priority chooses before it.
TEST(Sia, PriorityChoosesFirst) {
  ClusterState state = steep_and_nearly_flat();
  state.jobs[0].priority = 1;
  EXPECT_EQ(targets_of(state, "sia").sizes, (std::vector<Gpus>{4, 0}));
}

// It would take a GPU from the one that is to have all of them, which would take it back.
TEST(Sia, WhoIsLeftOutTakesNothing) {
  ClusterState state = steep_and_nearly_flat();
  state.jobs[1].started = true;
  for (Gpus g = 0; g < 4; ++g) state.jobs[1].held.push_back({g, "n1", "A", 1});
  state.nodes[0].free.gpus = 0;
  EXPECT_TRUE(make_plan(state, {.policy = "sia"}).actions.empty());
  state.queues["own"].quotas["*"].guaranteed = 1;
  state.jobs[0].queue = "own";
  EXPECT_FALSE(make_plan(state, {.policy = "sia"}).actions.empty());
}

TEST(Sia, WhoIsBeingChangedKeepsWhatItHas) {
  ClusterState state = on_wrong_types();
  state.jobs[0].settled = false;
  EXPECT_TRUE(make_plan(state, {.policy = "sia"}).actions.empty());
}

// One or two nodes of each of two types, of 4 GPUs; jobs that wait, or run on one node.
ClusterState drawn_for_sia(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  state.now_ms = 1'000'000;
  for (const char* type : {"A", "B"})
    for (std::uint64_t i = 0; i < 1 + rng.below(2); ++i)
      state.nodes.push_back(node(type + std::to_string(i), 4, 4, type));
  for (std::uint64_t i = 0; i < 1 + rng.below(4); ++i) {
    const Gpus min = rng.chance(0.8) ? 1 : 2;
    Job one = job("j" + std::to_string(i), min, rng.chance(0.8) ? 8 : 4);
    for (const char* type : {"A", "B"}) {
      double goodput = 1 + static_cast<double>(rng.below(300)) / 100;
      for (const Gpus gpus : {1, 2, 4, 8}) {
        one.goodput.push_back({type, gpus, 0, goodput});
        goodput *= 1 + static_cast<double>(rng.below(100)) / 100;
      }
    }
    Node& where = state.nodes[rng.below(state.nodes.size())];
    if (rng.chance(0.5) && where.free.gpus >= 2) {
      one.started = true;
      one.restarts = static_cast<std::int64_t>(rng.below(20));
      for (Gpus g = 0; g < 2; ++g) one.held.push_back({g, where.id, where.gpu_type, 1});
      for (Gpus g = 0; g < 2; ++g) where.free -= one.per_pod;
    }
    state.jobs.push_back(one);
  }
  return state;
}

double cost_on(const ClusterState& state, const Job& job, const std::string& type, Gpus gpus) {
  if (gpus == 0) return 1.1;
  double least = std::numeric_limits<double>::infinity(), there = 0;
  std::map<std::string, Gpus> of_type;
  for (const Node& each : state.nodes) of_type[each.gpu_type] += each.gpus_total;
  for (const GoodputPoint& point : job.goodput) {
    if (point.gpus < job.min || point.gpus > std::min(job.max, of_type[point.gpu_type])) continue;
    least = std::min(least, point.per_second);
    if (point.gpu_type == type && point.gpus == gpus) there = point.per_second;
  }
  const bool changes = !job.held.empty() && (gpus != 2 || job.held[0].gpu_type != type);
  const double factor = (1000 - 30.0 * static_cast<double>(job.restarts)) / 1030;
  return std::pow(there / least * static_cast<double>(job.min) * (changes ? factor : 1), -0.5);
}

double least_cost_of_sizes(const ClusterState& state, std::size_t i,
                           std::map<std::string, Gpus> left) {
  if (i == state.jobs.size()) return 0;
  const Job& job = state.jobs[i];
  double least = 1.1 + least_cost_of_sizes(state, i + 1, left);
  for (const char* type : {"A", "B"}) {
    for (const Gpus gpus : {1, 2, 4, 8}) {
      if (gpus < job.min || gpus > std::min(job.max, left[type])) continue;
      auto then = left;
      then[type] -= gpus;
      least = std::min(least,
                       cost_on(state, job, type, gpus) + least_cost_of_sizes(state, i + 1, then));
    }
  }
  return least;
}

TEST(Sia, NoConfigurationsCostLess) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_for_sia(seed);
    const Problem problem(state);
    const Targets targets = targets_of(state, "sia");
    double cost = 0;
    std::map<std::string, Gpus> left;
    for (const Node& each : state.nodes) left[each.gpu_type] += each.gpus_total;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const auto& type = targets.types[i];
      cost += cost_on(state, state.jobs[i], type ? problem.name(*type) : "", targets.sizes[i]);
      EXPECT_EQ(targets.places[i].has_value(), targets.sizes[i] > 0);
    }
    EXPECT_NEAR(cost, least_cost_of_sizes(state, 0, left), 1e-4 * cost + 1e-5);
  }
}

}  // namespace
}  // namespace rubato::sched
