// The policy `crius`.
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

constexpr double kLeastGain = 0.1;

// "runs" has the only fast GPUs, on which it is hardly faster; "waits" is four times as fast there.
ClusterState one_on_the_wrong_type() {
  ClusterState state = cluster({node("a", 2, 2, "A"), node("b", 2, 0, "B")},
                               {running("runs", 2, 2, {"b", "b"}), job("waits", 2, 2)});
  for (Held& held : state.jobs[0].held) held.gpu_type = "B";
  state.now_ms = 10'000'000;
  state.jobs[0].allocated_ms = 0;
  state.jobs[0].measured = {{"A", 2, 9.5}, {"B", 2, 10}};
  state.jobs[1].measured = {{"A", 2, 10}, {"B", 2, 40}};
  return state;
}

std::string type_for(const ClusterState& state, std::size_t job,
                     const Parameters& parameters = {}) {
  const Targets targets = targets_of(state, "crius", parameters);
  return targets.types[job] ? Problem(state).name(*targets.types[job]) : "";
}

TEST(Crius, ExchangesTypesWhereTheSumGains) {
  const ClusterState state = one_on_the_wrong_type();
  EXPECT_EQ(type_for(state, 0), "A");
  EXPECT_EQ(type_for(state, 1), "B");
  // Without the exchange the newcomer takes what is free, as under every simpler policy.
  EXPECT_EQ(type_for(state, 0, {{"exchange", 0}}), "B");
  EXPECT_EQ(type_for(state, 1, {{"exchange", 0}}), "A");
  EXPECT_EQ(who_plans_the_same(state, "crius"), Nobody{});
}

TEST(Crius, ChangesNobodyWhoHasHadItsCellForAShortWhile) {
  ClusterState state = one_on_the_wrong_type();
  state.jobs[0].allocated_ms = state.now_ms - 599'000;
  EXPECT_EQ(type_for(state, 0), "B");
  state.jobs[0].allocated_ms = state.now_ms - 600'000;
  EXPECT_EQ(type_for(state, 0), "A");
}

// A small loss of one is less than what the other gains.
TEST(Crius, ARunningJobBecomesSmallerForOneThatWaits) {
  ClusterState state = cluster(
      {node("a", 8, 0)}, {running("runs", 1, 8, std::vector<NodeId>(8, "a")), job("waits", 4, 4)});
  state.now_ms = 10'000'000;
  state.jobs[0].allocated_ms = 0;
  state.jobs[0].measured = {{"A", 4, 38}, {"A", 8, 40}};
  Targets targets = targets_of(state, "crius");
  EXPECT_EQ(targets.sizes, (std::vector<Gpus>{4, 4}));
  // Nobody is made to stop, nor to lose more than that.
  state.jobs[0].measured = {{"A", 4, 1}, {"A", 8, 4000}};
  state.jobs[1].weight = 0.1;
  targets = targets_of(state, "crius");
  EXPECT_EQ(targets.sizes, (std::vector<Gpus>{8, 0}));
}

// "large" is worth most on four of C, for which "small" goes to B. Both stop at some time, and no
// round knows what the one before meant for them.
TEST(Crius, WhatAnExchangeMeansComesOfIt) {
  const auto with_goodput = [](Job one, Gpus per_pod, std::vector<GoodputPoint> goodput) {
    one.per_pod.gpus = per_pod;
    one.goodput = std::move(goodput);
    return one;
  };
  Job small = with_goodput(running("small", 1, 2, {"c2"}), 1, {{"C", 3, 0, 17.3}});
  small.held[0].gpu_type = "C";
  small.weight = 0.5;
  Job first = job("first", 2, 2);
  first.priority = 2;
  ClusterState state =
      cluster({node("c1", 3, 3, "C"), node("c2", 4, 3, "C"), node("b", 8, 8, "B")},
              {with_goodput(job("large", 2, 4), 2, {{"B", 16, 0, 160}}), first,
               with_goodput(job("rigid", 4, 4), 1, {{"B", 4, 0, 20}, {"C", 16, 0, 91.9}}), small});
  for (Job& one : state.jobs)
    if (one.id != "large") one.shape = Shape::kPowersOfTwo;
  state.now_ms = 49'000'000;
  for (const GpuMs attained : {0, 1}) {
    state.jobs[3].attained_gpu_ms = attained;
    const ClusterState end = at_rest(state, {.policy = "crius"}, 20, 601'000);
    EXPECT_TRUE(make_plan(end, {.policy = "crius"}).actions.empty());
    for (const Job& one : end.jobs) EXPECT_GT(effective_gpus(one), 0) << one.id;
  }
}

// By count four of B are left for it, but one of its two pods fits: it would be slower there.
TEST(Crius, NobodyIsStoppedForACellThatNodesHaveNoRoomFor) {
  Job one = running("runs", 2, 4, {"a"});
  one.per_pod.gpus = one.held[0].gpus = 2;
  one.measured = {{"A", 2, 10}, {"B", 2, 9}, {"B", 4, 18}};
  one.allocated_ms = 0;
  Job other = running("other", 1, 1, {"b2"});
  other.held[0].gpu_type = "B";
  other.allocated_ms = 0;
  ClusterState state = cluster(
      {node("a", 2, 0), node("b1", 2, 2, "B"), node("b2", 2, 1, "B"), node("b3", 1, 1, "B")},
      {one, other});
  state.now_ms = 10'000'000;
  EXPECT_TRUE(make_plan(state, {.policy = "crius"}).actions.empty());
  state.jobs.pop_back();
  state.nodes[2].free.gpus = 2;
  EXPECT_EQ(type_for(state, 0), "B");
}

// "first" would lose less, but without it no node of B has two GPUs.
TEST(Crius, ExchangesWithWhoLeavesRoomOnNodes) {
  ClusterState state = cluster(
      {node("a", 2, 2), node("b1", 1, 0, "B"), node("b2", 1, 0, "B"), node("b3", 2, 0, "B")},
      {running("first", 2, 2, {"b1", "b2"}), running("second", 2, 2, {"b3", "b3"}),
       job("waits", 2, 2)});
  state.now_ms = 10'000'000;
  for (std::size_t i : {0U, 1U})
    for (Held& held : state.jobs[i].held) held.gpu_type = "B";
  state.jobs[0].measured = {{"A", 2, 9.9}, {"B", 2, 10}};
  state.jobs[1].measured = {{"A", 2, 9.5}, {"B", 2, 10}};
  state.jobs[2].measured = {{"A", 2, 10}, {"B", 2, 40}};
  EXPECT_EQ(type_for(state, 0), "A");
  state.jobs[2].per_pod.gpus = 2;
  EXPECT_EQ(type_for(state, 0), "B");
  EXPECT_EQ(type_for(state, 1), "A");
  EXPECT_EQ(type_for(state, 2), "B");
}

// What the other one is to give up for it, and does not: it may not be stopped, or is inside its
// guarantee.
TEST(Crius, WhoseCellIsNotGivenUpStartsWithWhatFits) {
  ClusterState state = cluster({node("a", 8, 8, "A"), node("b", 4, 2, "B")},
                               {running("runs", 2, 2, {"b", "b"}), job("waits", 2, 4)});
  state.now_ms = 10'000'000;
  state.jobs[0].allocated_ms = 0;
  state.jobs[0].measured = {{"A", 2, 10}, {"B", 2, 10.1}};
  for (Held& held : state.jobs[0].held) held.gpu_type = "B";
  state.jobs[1].allow = {"B"};
  state.jobs[1].measured = {{"B", 2, 10}, {"B", 4, 40}};
  ASSERT_EQ(type_for(state, 0), "A");
  const PolicyConfig stops_nobody{.policy = "crius", .preempt = false};
  EXPECT_EQ(effective_gpus(at_rest(state, stops_nobody, 10).jobs[1]), 2);

  std::vector<NodeId> eight(8, "a0");
  state = cluster({node("a0", 8, 0), node("a1", 2, 2), node("b", 8, 8, "B")},
                  {running("runs", 2, 8, eight), job("waits", 2, 8)});
  state.now_ms = 10'000'000;
  state.queues["own"] = {.name = "own"};
  state.queues["own"].quotas["A"].guaranteed = 8;
  state.jobs[0].queue = "own";
  state.jobs[0].allocated_ms = 0;
  state.jobs[0].measured = {{"A", 2, 38}, {"A", 8, 40}};
  state.jobs[1].measured = {{"A", 2, 10}, {"A", 8, 40}};
  for (Job& one : state.jobs) one.allow = {"A"};
  ASSERT_EQ(targets_of(state, "crius").sizes, (std::vector<Gpus>{2, 8}));
  EXPECT_EQ(effective_gpus(at_rest(state, {.policy = "crius"}, 10).jobs[1]), 2);
}

// By count two of A are left, but on two nodes: "waits" needs one of what "wide" has beyond its
// minimum.
TEST(Crius, APodThatLeavesElsewhereChangesNoRights) {
  ClusterState state =
      cluster({node("n1", 4, 1), node("n2", 2, 1), node("b", 2, 1, "B")},
              {running("wide", 1, 3, {"n1", "n1", "n1"}), running("other", 1, 1, {"n2"}),
               running("elsewhere", 1, 1, {"b"}), job("waits", 2, 2)});
  state.now_ms = 10'000'000;
  for (Job& one : state.jobs) {
    one.allocated_ms = state.now_ms;
    one.allow = {one.id == "elsewhere" ? "B" : "A"};
  }
  state.jobs[2].held[0].gpu_type = "B";
  state.jobs[3].per_pod.gpus = 2;
  const Sizes sizes{{"wide", 2}, {"other", 1}, {"elsewhere", 1}};
  EXPECT_EQ(sizes_after(state, "crius"), sizes);
  state.nodes[2].free -= state.jobs[2].per_pod;
  state.jobs[2].held.push_back(
      {.ordinal = 1, .node = "b", .gpu_type = "B", .gpus = 1, .leaving = true});
  EXPECT_EQ(sizes_after(state, "crius"), sizes);
}

// Worth by an own reading: throughput over the most of the job's cells, in powers of two.
double worth(const Job& job, const std::string& type, Gpus gpus) {
  const auto points_of = [&](const std::string& wanted) {
    std::vector<ThroughputPoint> points;
    for (const ThroughputPoint& point : job.measured)
      if (point.gpu_type == wanted) points.push_back(point);
    return points;
  };
  double most = 0, own = 0;
  for (const char* one : {"A", "B"})
    for (const ThroughputPoint& point : points_of(one)) {
      most = std::max(most, point.tokens_per_second);
      if (one == type && point.gpus == gpus) own = point.tokens_per_second;
    }
  return own / most;
}

// Jobs that may have 1, 2 or 4 GPUs of A or B, all of it measured; none runs yet.
ClusterState drawn_cells(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({node("a", 4, 4, "A"), node("b", 4, 4, "B")}, {});
  for (std::uint64_t i = 0, jobs = 1 + rng.below(6); i < jobs; ++i) {
    Job one = job("j" + std::to_string(i), 1, 4);
    one.queued_at = static_cast<double>(i);
    for (const char* type : {"A", "B"}) {
      double speed = 10 + static_cast<double>(rng.below(30));
      for (const Gpus gpus : {1, 2, 4}) {
        one.measured.push_back({type, gpus, speed});
        speed *= 1.05 + 0.01 * static_cast<double>(rng.below(90));
      }
    }
    state.jobs.push_back(one);
  }
  return state;
}

// No job waits where there is room for one of its cells, and no single change gains.
TEST(Crius, NoSingleChangeIsWorthMore) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_cells(seed);
    const Problem problem(state);
    const Targets targets = targets_of(state, "crius");
    std::map<std::string, Gpus> left{{"A", 4}, {"B", 4}};
    for (std::size_t i = 0; i < state.jobs.size(); ++i)
      if (targets.types[i]) left[problem.name(*targets.types[i])] -= targets.sizes[i];
    EXPECT_GE(left["A"], 0);
    EXPECT_GE(left["B"], 0);
    std::size_t changed_once = 0;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const std::string own = targets.types[i] ? problem.name(*targets.types[i]) : "";
      for (const char* type : {"A", "B"})
        for (const Gpus gpus : {1, 2, 4}) {
          const Gpus room = left[type] + (own == type ? targets.sizes[i] : 0);
          if (gpus > room) continue;
          EXPECT_NE(own, "") << state.jobs[i].id;
          // Each is changed once a round: one that was may gain once more in the next.
          if (own.empty() || worth(state.jobs[i], type, gpus) <=
                                 worth(state.jobs[i], own, targets.sizes[i]) + 1e-9)
            continue;
          ++changed_once;
        }
    }
    EXPECT_EQ(changed_once, 0u);
  }
}

// A running job changes for leastGain at least, and not for less.
TEST(Crius, GrowsForTheLeastGain) {
  for (const double gain : {kLeastGain - 0.01, kLeastGain + 0.01}) {
    ClusterState state = cluster({node("a", 2, 1)}, {running("j", 1, 2, {"a"})});
    state.now_ms = 10'000'000;
    state.jobs[0].allocated_ms = 0;
    state.jobs[0].measured = {{"A", 1, 100}, {"A", 2, 100 * (1 + gain)}};
    EXPECT_EQ(targets_of(state, "crius").sizes[0], gain > kLeastGain ? 2 : 1) << gain;
  }
}

}  // namespace
}  // namespace rubato::sched
