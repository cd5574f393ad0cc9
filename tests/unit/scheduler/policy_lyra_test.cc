// The policy `lyra`.
#include "tests/unit/scheduler/policy_cases.h"

#include <functional>

namespace rubato::sched {
namespace {

// Three GPUs are left after the minimums. a saves most a GPU by one more, and then cannot use two;
// b saves a lot by three, and nothing by fewer.
ClusterState three_to_give() {
  ClusterState state = cluster({node("n1", 5, 5)}, {job("a", 1, 2), job("b", 1, 4)});
  state.jobs[0].measured = {{"A", 1, 1.0}, {"A", 2, 2.0}};
  state.jobs[1].measured = {{"A", 1, 1.0}, {"A", 2, 1.0}, {"A", 3, 1.0}, {"A", 4, 4.0}};
  state.jobs[0].remaining_ms = state.jobs[0].duration_ms = 1'000'000;  // saves 500 s
  state.jobs[1].remaining_ms = state.jobs[1].duration_ms = 1'200'000;  // saves 900 s
  return state;
}

// 900 s for three GPUs are more than 500 s for one, though less a GPU.
TEST(Lyra, PlansWhatNoSimplerPolicyDoes) {
  ClusterState state = three_to_give();
  EXPECT_EQ(targets_of(state, "lyra").sizes, (std::vector<Gpus>{1, 4}));
  EXPECT_EQ(sizes_after(state, "lyra"), (Sizes{{"a", 1}, {"b", 4}}));
  state.jobs[1].queued_at = -1;
  state.jobs[0].weight = 2;  // marginal throughput prefers a
  state.jobs[0].measured[1].tokens_per_second = 1.8;
  EXPECT_EQ(sizes_after(state, "lyra"), (Sizes{{"a", 1}, {"b", 4}}));
  EXPECT_EQ(who_plans_the_same(state, "lyra"), Nobody{});
}

// Its mechanism is the knapsack over time saved: where b has little left, a gets the GPU.
TEST(Lyra, TimeSavedDecides) {
  ClusterState state = three_to_give();
  state.jobs[1].remaining_ms = 600'000;  // saves 450 s
  EXPECT_EQ(targets_of(state, "lyra").sizes, (std::vector<Gpus>{2, 1}));
}

TEST(Lyra, WhoRunsKeepsItsMinimum) {
  ClusterState state = cluster(
      {node("n1", 4, 0)}, {job("short", 2, 2), running("long", 4, 4, {"n1", "n1", "n1", "n1"})});
  state.jobs[0].remaining_ms = 1'000;
  state.jobs[1].remaining_ms = 9'000'000;
  EXPECT_TRUE(make_plan(state, {.policy = "lyra"}).actions.empty());
}

double amdahl(Gpus n) { return 1 / ((1 - 0.05) / static_cast<double>(n) + 0.05); }

double saved(const Job& j, Gpus size) {
  const auto left = static_cast<double>(j.remaining_ms.value_or(0));
  return left - left * amdahl(j.min) / amdahl(size);
}

// The most that all can save, by trying everything, where one node type has all GPUs.
double most_saved(const ClusterState& state, const std::vector<Gpus>& minimums, std::size_t i,
                  Gpus left) {
  if (i == state.jobs.size()) return 0;
  double best = most_saved(state, minimums, i + 1, left);
  if (minimums[i] == 0) return best;
  for (Gpus size = minimums[i] + 1; size <= state.jobs[i].max && size - minimums[i] <= left; ++size)
    best = std::max(best, saved(state.jobs[i], size) +
                              most_saved(state, minimums, i + 1, left - (size - minimums[i])));
  return best;
}

TEST(Lyra, SavesAsMuchAsCanBeSavedOnDrawnStates) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    Gpus left = gpus_there(state);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) order.push_back(i);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return state.jobs[i].queued_at; });
    std::ranges::stable_sort(order, {},
                             [&](std::size_t i) { return state.jobs[i].remaining_ms.value_or(0); });
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return state.jobs[i].held.empty(); });
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::size_t i) { return state.jobs[i].priority; });
    std::vector<Gpus> minimums(state.jobs.size(), 0);
    for (const std::size_t i : order)
      if (state.jobs[i].refused.empty() && state.jobs[i].min <= left)
        left -= minimums[i] = state.jobs[i].min;
    const std::vector<Gpus> sizes = targets_of(state, "lyra").sizes;
    double saves = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(sizes[i] > 0, minimums[i] > 0);
      EXPECT_GE(sizes[i], minimums[i]);
      left -= sizes[i] - minimums[i];
      if (sizes[i] > 0) saves += saved(state.jobs[i], sizes[i]);
    }
    EXPECT_GE(left, 0);
    Gpus before = left;
    for (std::size_t i = 0; i < sizes.size(); ++i) before += sizes[i] - minimums[i];
    EXPECT_NEAR(saves, most_saved(state, minimums, 0, before), 1e-6 * (1 + saves));
  }
}

}  // namespace
}  // namespace rubato::sched
