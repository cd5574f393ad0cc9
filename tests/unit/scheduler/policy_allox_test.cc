// The policy `allox`.
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>
#include <functional>
#include <numeric>

namespace rubato::sched {
namespace {

// So long on a GPU of A, and so on one of B.
Job lasting_by_type(const std::string& id, TimeMs on_a_s, TimeMs on_b_s) {
  Job j = job(id, 1, 1);
  j.remaining_ms = j.duration_ms = std::min(on_a_s, on_b_s) * 1000;
  j.measured = {{"A", 1, 1e6 / static_cast<double>(on_a_s)},
                {"B", 1, 1e6 / static_cast<double>(on_b_s)}};
  return j;
}

// One GPU of each type. The two shortest jobs are slow on B.
ClusterState three_for_two_gpus() {
  ClusterState state = cluster({node("n1", 1, 1, "A"), node("n2", 1, 1, "B")},
                               {lasting_by_type("a", 20, 2000), lasting_by_type("b", 30, 3000),
                                lasting_by_type("c", 50, 50)});
  state.jobs[2].queued_at = 9;
  return state;
}

// The second shortest waits for A, and the longest has B.
TEST(Allox, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = three_for_two_gpus();
  EXPECT_EQ(sizes_after(state, "allox"), (Sizes{{"a", 1}, {"c", 1}}));
  EXPECT_EQ(who_plans_the_same(state, "allox"), Nobody{});
}

TEST(Allox, JobsStartOnTheirTypes) {
  std::map<JobId, std::string> types;
  for (const Action& action : make_plan(three_for_two_gpus(), {.policy = "allox"}).actions)
    types[action.job] = action.add.at(0).gpu_type;
  EXPECT_EQ(types, (std::map<JobId, std::string>{{"a", "A"}, {"c", "B"}}));
}

// Its mechanism is the matching: with only as many jobs as there are GPUs, by age, in it, the two
// that came first have them.
TEST(Allox, FewJobsInTheMatchingGoByAge) {
  EXPECT_EQ(sizes_after(three_for_two_gpus(), "allox", {{"alpha", 0}}),
            (Sizes{{"a", 1}, {"b", 1}}));
}

// … and the times on types: where all are as fast, the two shortest go first.
TEST(Allox, WithoutDifferencesTheShortestGoFirst) {
  ClusterState state = three_for_two_gpus();
  for (Job& j : state.jobs) j.measured.clear();
  EXPECT_EQ(sizes_after(state, "allox"), (Sizes{{"a", 1}, {"b", 1}}));
}

// Of a speed that is next to nothing, as a broken measurement may say, no cost can be made.
TEST(Allox, ASpeedOfNextToNothingIsNone) {
  ClusterState state = three_for_two_gpus();
  for (Job& j : state.jobs)
    for (ThroughputPoint& point : j.measured) point.tokens_per_second = 5e-324;
  EXPECT_EQ(sizes_after(state, "allox"), (Sizes{{"a", 1}, {"b", 1}}));
}

TEST(Allox, WhoRunsIsNotStopped) {
  ClusterState state =
      cluster({node("n1", 1, 0)}, {running("long", 1, 1, {"n1"}), job("short", 1, 1)});
  state.jobs[0].remaining_ms = 90'000'000;
  state.jobs[1].remaining_ms = 1'000;
  EXPECT_EQ(sizes_after(state, "allox"), (Sizes{{"long", 1}}));
}

// Jobs that wait, and free GPUs of two types.
ClusterState drawn_waiting(std::uint64_t seed, bool has_equals) {
  Rng rng(seed);
  const auto below = [&](std::uint64_t bound) { return static_cast<Gpus>(rng.below(bound)); };
  const Gpus of_a = 1 + below(4), of_b = below(4);
  ClusterState state = cluster({node("n1", of_a, of_a, "A"), node("n2", of_b, of_b, "B")}, {});
  const Gpus same = 1 + below(2);
  for (std::uint64_t i = 0; i < 1 + rng.below(5); ++i) {
    Job j = lasting_by_type("j" + std::to_string(i), 1 + below(1000), 1 + below(1000));
    j.min = j.max = has_equals ? same : 1 + below(4);
    for (ThroughputPoint& point : j.measured) point.gpus = j.min;
    if (rng.chance(0.3)) j.measured.pop_back();
    if (rng.chance(0.5)) j.remaining_ms.reset();
    j.queued_at = static_cast<double>(below(4));
    state.jobs.push_back(std::move(j));
  }
  return state;
}

std::int64_t cost(const ClusterState& state, std::size_t i, std::size_t type, std::size_t behind) {
  const Job& j = state.jobs[i];
  double takes = static_cast<double>(j.remaining_ms.value_or(*j.duration_ms));
  double best = 0;
  for (const ThroughputPoint& point : j.measured) best = std::max(best, point.tokens_per_second);
  if (type < j.measured.size()) takes *= best / j.measured[type].tokens_per_second;
  const double part =
      static_cast<double>(j.min) / static_cast<double>(state.nodes[type].gpus_total);
  return std::llround(takes * (1 + static_cast<double>(behind) * part));
}

// Of all ways to put those from the i-th on before those that are there already.
std::int64_t least_cost_of_waiting(const ClusterState& state, const std::vector<std::size_t>& jobs,
                                   std::size_t k, std::vector<std::vector<char>>& taken) {
  if (k == jobs.size()) return 0;
  auto least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t type = 0; type < 2; ++type) {
    if (state.jobs[jobs[k]].min > state.nodes[type].free.gpus) continue;
    for (std::size_t behind = 0; behind < jobs.size(); ++behind) {
      if (taken[type][behind] != 0) continue;
      taken[type][behind] = 1;
      least = std::min(least, cost(state, jobs[k], type, behind) +
                                  least_cost_of_waiting(state, jobs, k + 1, taken));
      taken[type][behind] = 0;
    }
  }
  return least;
}

// Jobs of one size, one type after the other: the order and the types are a matching of the least
// cost.
TEST(Allox, NoMatchingCostsLess) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_waiting(seed, true);
    const Targets targets = targets_of(state, "allox");
    std::vector<std::size_t> jobs;
    std::vector<std::size_t> behind(2, 0);
    std::int64_t sum = 0;
    for (auto j = targets.order.rbegin(); j != targets.order.rend(); ++j) {
      const auto& type = targets.types[j->value];
      if (!type) continue;
      jobs.push_back(j->value);
      sum += cost(state, j->value, type->value, behind[type->value]++);
    }
    const auto fits = [&](const Job& j) {
      return j.min <= std::max(state.nodes[0].free.gpus, state.nodes[1].free.gpus);
    };
    EXPECT_EQ(std::ssize(jobs), std::ranges::count_if(state.jobs, fits));
    std::vector<std::vector<char>> taken(2, std::vector<char>(jobs.size(), 0));
    EXPECT_EQ(sum, least_cost_of_waiting(state, jobs, 0, taken));
  }
}

// Jobs of any sizes: no other types allow a cheaper matching.
TEST(Allox, NoOtherTypesCostLess) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_waiting(seed, false);
    const Targets targets = targets_of(state, "allox");
    std::vector<std::size_t> jobs;
    for (std::size_t i = 0; i < state.jobs.size(); ++i)
      if (targets.types[i]) jobs.push_back(i);
    ClusterState bound = state;
    std::int64_t sum = 0;
    for (std::size_t type = 0; type < 2; ++type) {
      std::vector<std::size_t> here;
      std::ranges::copy_if(jobs, std::back_inserter(here),
                           [&](std::size_t i) { return targets.types[i]->value == type; });
      bound.nodes[1 - type].free.gpus = 0;
      std::vector<std::vector<char>> taken(2, std::vector<char>(here.size(), 0));
      sum += least_cost_of_waiting(bound, here, 0, taken);
      bound.nodes[1 - type].free.gpus = state.nodes[1 - type].free.gpus;
    }
    std::vector<std::vector<char>> taken(2, std::vector<char>(jobs.size(), 0));
    EXPECT_EQ(sum, least_cost_of_waiting(state, jobs, 0, taken));
  }
}

}  // namespace
}  // namespace rubato::sched
