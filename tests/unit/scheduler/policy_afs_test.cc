// The policy `afs`.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

// Both scale alike and perfectly; b is older and longer.
ClusterState two_on_eight_gpus() {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8), job("b", 1, 8)});
  for (Job& j : state.jobs)
    for (const Gpus n : {1, 2, 4, 8}) j.measured.push_back({"A", n, 64.0 * static_cast<double>(n)});
  state.jobs[0].remaining_ms = state.jobs[0].duration_ms = 1'000'000;
  state.jobs[1].remaining_ms = state.jobs[1].duration_ms = 90'000'000;
  state.jobs[0].queued_at = 9;
  return state;
}

// The shorter job has more than half, where each further GPU is worth the same to both.
TEST(Afs, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = two_on_eight_gpus();
  EXPECT_EQ(sizes_after(state, "afs"), (Sizes{{"a", 5}, {"b", 3}}));
  EXPECT_EQ(who_plans_the_same(state, "afs"), Nobody{});
}

// Its mechanism is who is shorter: turned round, the result turns round.
TEST(Afs, WhoIsShorterDecides) {
  ClusterState state = two_on_eight_gpus();
  std::swap(state.jobs[0].remaining_ms, state.jobs[1].remaining_ms);
  EXPECT_EQ(sizes_after(state, "afs"), (Sizes{{"a", 3}, {"b", 5}}));
}

double speed(Gpus n) { return 1 / ((1 - 0.05) * (1 / static_cast<double>(n)) + 0.05); }

// The rule for one more GPU at a time, where one node has all GPUs and nothing was measured.
std::vector<Gpus> afs_reference(const ClusterState& state) {
  Gpus left = gpus_there(state);
  const auto left_of = [&](std::size_t i) {
    const Job& j = state.jobs[i];
    if (j.remaining_ms) return *j.remaining_ms;
    TimeMs minutes = 1;
    for (; minutes * 60'000 * j.min < j.attained_gpu_ms; minutes *= 2) {
    }
    return minutes * 60'000;
  };
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return state.jobs[i].queued_at; });
  std::ranges::stable_sort(order, {}, left_of);
  std::ranges::stable_sort(order, std::greater(),
                           [&](std::size_t i) { return state.jobs[i].priority; });
  std::vector<Gpus> sizes(state.jobs.size(), 0);
  for (const std::size_t i : order)
    if (state.jobs[i].refused.empty() && state.jobs[i].min <= left)
      left -= sizes[i] = state.jobs[i].min;
  for (; left > 0; --left) {
    std::optional<std::size_t> winner;
    for (const std::size_t i : order) {
      if (sizes[i] == 0 || sizes[i] == state.jobs[i].max) continue;
      if (!winner) {
        winner = i;
        continue;
      }
      const auto ends = [&](std::size_t k) {
        return static_cast<double>(left_of(k)) * speed(state.jobs[k].min) / speed(sizes[k]);
      };
      const std::size_t a = ends(i) < ends(*winner) ? i : *winner;
      const std::size_t b = a == i ? *winner : i;
      const double of_b = (speed(sizes[b] + 1) - speed(sizes[b])) / speed(sizes[b] + 1);
      const double of_a = (speed(sizes[a] + 1) - speed(sizes[a])) / speed(sizes[a]);
      winner = of_b > of_a ? b : a;
    }
    if (!winner) break;
    ++sizes[*winner];
  }
  return sizes;
}

TEST(Afs, GivesOutGpusAsTheRuleSaysOnDrawnStates) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    EXPECT_EQ(targets_of(state, "afs").sizes, afs_reference(state));
  }
}

}  // namespace
}  // namespace rubato::sched
