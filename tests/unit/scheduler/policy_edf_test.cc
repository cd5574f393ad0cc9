// The policy `edf`.
#include "tests/unit/scheduler/policy_cases.h"

#include <numeric>
#include <tuple>

namespace rubato::sched {
namespace {

Job due_at(Job j, TimeMs deadline_ms) {
  j.deadline_ms = deadline_ms;
  return j;
}

// The youngest and longest of three has the nearest deadline.
ClusterState three_with_deadlines() {
  ClusterState state = cluster(
      {node("n1", 2, 2)},
      {job("a", 2, 2), due_at(job("b", 2, 2), 9'000'000), due_at(job("c", 2, 2), 5'000'000)});
  for (Job& j : state.jobs) j.duration_ms = j.remaining_ms = j.attained_gpu_ms = 1'000'000;
  state.jobs[2].duration_ms = state.jobs[2].remaining_ms = 2'000'000;
  state.jobs[2].attained_gpu_ms = 8'000'000;
  state.jobs[2].queued_at = 9;
  return state;
}

TEST(Edf, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = three_with_deadlines();
  EXPECT_EQ(sizes_after(state, "edf"), (Sizes{{"c", 2}}));
  EXPECT_EQ(who_plans_the_same(state, "edf"), Nobody{});
}

TEST(Edf, WithoutDeadlinesItIsFirstInFirstOut) {
  ClusterState state = three_with_deadlines();
  for (Job& j : state.jobs) j.deadline_ms.reset();
  EXPECT_EQ(sizes_after(state, "edf"), (Sizes{{"a", 2}}));
}

TEST(Edf, ANearerDeadlinePreemptsAndAHigherPriorityIsSafe) {
  ClusterState state =
      cluster({node("n1", 2, 0)},
              {due_at(running("holds", 2, 2, {"n1", "n1"}), 200), due_at(job("comes", 2, 2), 100)});
  EXPECT_EQ(sizes_after(state, "edf"), Sizes{});
  state.jobs[0].priority = 1;
  EXPECT_EQ(sizes_after(state, "edf"), (Sizes{{"holds", 2}}));
}

// Who comes before whom, asked of each pair.
TEST(Edf, OrdersEachPairAsTheRuleSays) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    std::map<JobId, std::size_t> place;
    for (const JobId& id : order_of(state, "edf")) place.emplace(id, place.size());
    ASSERT_EQ(place.size(), state.jobs.size());
    for (const Job& a : state.jobs) {
      for (const Job& b : state.jobs) {
        bool first = a.id < b.id;
        if (a.queued_at != b.queued_at) first = a.queued_at < b.queued_at;
        if (a.deadline_ms && b.deadline_ms && *a.deadline_ms != *b.deadline_ms)
          first = *a.deadline_ms < *b.deadline_ms;
        if (a.deadline_ms.has_value() != b.deadline_ms.has_value())
          first = a.deadline_ms.has_value();
        if (a.priority != b.priority) first = a.priority > b.priority;
        EXPECT_EQ(place.at(a.id) < place.at(b.id), first) << a.id << " " << b.id;
      }
    }
  }
}

TimeMs lateness(const ClusterState& state, const std::vector<std::size_t>& order) {
  TimeMs now = state.now_ms;
  TimeMs worst = std::numeric_limits<TimeMs>::min();
  for (const std::size_t i : order) {
    now += *state.jobs[i].duration_ms;
    worst = std::max(worst, now - *state.jobs[i].deadline_ms);
  }
  return worst;
}

// Jackson's theorem, by all permutations: one after the other in this order, no job is later than
// the latest of any other order.
TEST(Edf, NoOtherOrderHasLessLatenessAtWorst) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    ClusterState state = cluster({node("n1", 1, 1)}, {});
    std::vector<std::size_t> order(1 + rng.below(6));
    std::iota(order.begin(), order.end(), 0u);
    for (const std::size_t i : order) {
      state.jobs.push_back(
          due_at(job("j" + std::to_string(i), 1, 1), static_cast<TimeMs>(rng.below(40))));
      state.jobs.back().duration_ms = static_cast<TimeMs>(1 + rng.below(10));
    }
    std::vector<std::size_t> chosen;
    for (const JobIndex j : targets_of(state, "edf").order) chosen.push_back(j.value);
    TimeMs least = std::numeric_limits<TimeMs>::max();
    do least = std::min(least, lateness(state, order));
    while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(lateness(state, chosen), least);
  }
}

}  // namespace
}  // namespace rubato::sched
