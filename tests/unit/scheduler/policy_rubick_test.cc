// The policy `rubick`.
#include "tests/unit/scheduler/policy_cases.h"

#include <optional>

namespace rubato::sched {
namespace {

void measure(Job& job, const std::vector<std::pair<Gpus, double>>& points) {
  for (const auto& [gpus, speed] : points) job.measured.push_back({"A", gpus, speed});
}

// a offloads its optimizer below 4 GPUs, and there has a plan that is 16 times as fast. b scales
// well, and evenly.
ClusterState a_plan_that_needs_four() {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8), job("b", 1, 8)});
  measure(state.jobs[0], {{1, 1}, {2, 1}, {3, 1}, {4, 16}, {5, 17}, {6, 18}, {7, 19}, {8, 20}});
  measure(state.jobs[1], {{1, 10}, {2, 19}, {3, 27}, {4, 34}, {5, 40}, {6, 45}, {7, 49}, {8, 52}});
  return state;
}

// a gets its plan and no more: 15 / 3 over the 4 that a GPU brings is 1.25, then 0.25; b has 0.9,
// 0.8, 0.7.
TEST(Rubick, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = a_plan_that_needs_four();
  EXPECT_EQ(sizes_after(state, "rubick"), (Sizes{{"a", 4}, {"b", 4}}));
  EXPECT_EQ(who_plans_the_same(state, "rubick"), Nobody{});
}

// Its mechanism is the curve over plans: if a had to offload at every size, it would keep its
// minimum.
TEST(Rubick, WithoutThatPlanTheOtherGetsAll) {
  ClusterState state = a_plan_that_needs_four();
  state.jobs[0].measured.clear();
  measure(state.jobs[0], {{1, 1}, {2, 1}, {3, 1}, {4, 1.02}, {5, 1.03}, {8, 1.05}});
  EXPECT_EQ(sizes_after(state, "rubick"), (Sizes{{"a", 1}, {"b", 7}}));
}

// Half a percent is no gain: the curve is flat there, though nobody else wants the GPUs.
TEST(Rubick, AGpuHasToBringAPercent) {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  measure(state.jobs[0], {{1, 100}, {2, 150}, {3, 150.5}, {4, 151}, {8, 152}});
  EXPECT_EQ(sizes_after(state, "rubick"), (Sizes{{"a", 2}}));
}

// The second comes first where its queue has a guarantee.
TEST(Rubick, GuaranteedJobsComeFirst) {
  ClusterState state = cluster({node("n1", 4, 4)}, {job("a", 4, 4), job("b", 4, 4)});
  state.jobs[1].queue = "team";
  state.jobs[1].queued_at = 5;
  state.queues["team"] = {.name = "team"};
  EXPECT_EQ(order_of(state, "rubick"), (std::vector<JobId>{"a", "b"}));
  state.queues["team"].quotas["*"].guaranteed = 4;
  EXPECT_EQ(order_of(state, "rubick"), (std::vector<JobId>{"b", "a"}));
  EXPECT_EQ(sizes_after(state, "rubick"), (Sizes{{"b", 4}}));
}

TEST(Rubick, WhoStarvesComesFirst) {
  ClusterState state = cluster({node("n1", 4, 4)}, {job("a", 2, 4), job("b", 2, 4)});
  state.now_ms = 300'000'000;
  measure(state.jobs[0], {{2, 1}, {4, 8}});  // its minimum is worth less than b's
  measure(state.jobs[1], {{2, 1}, {4, 1.5}});
  state.jobs[0].queued_at = 150'000;
  state.jobs[1].queued_at = 150'000;
  EXPECT_EQ(order_of(state, "rubick"), (std::vector<JobId>{"b", "a"}));
  state.jobs[0].queued_at = 50'000;
  EXPECT_EQ(order_of(state, "rubick"), (std::vector<JobId>{"a", "b"}));
}

// a holds seven; b's curve is steeper there, but a keeps what it got a moment ago.
TEST(Rubick, AChangeHasToPay) {
  ClusterState state = a_plan_that_needs_four();
  state.now_ms = 10'000'000;
  state.nodes[0].free = {0, 0, 0};
  for (Gpus g = 0; g < 7; ++g) state.jobs[0].held.push_back({g, "n1", "A", 1});
  state.jobs[1].held.push_back({0, "n1", "A", 1});
  for (Job& one : state.jobs) one.started = true;
  state.jobs[0].allocated_ms = state.jobs[1].allocated_ms = 9'000'000;
  EXPECT_EQ(targets_of(state, "rubick").sizes, (std::vector<Gpus>{7, 1}));
  EXPECT_EQ(targets_of(state, "rubick", {{"keepSeconds", 900}}).sizes, (std::vector<Gpus>{4, 4}));
}

double prior(Gpus n) { return 1 / ((1 - 0.05) / static_cast<double>(n) + 0.05); }

// The rule word by word, where one node type has all GPUs, a pod has one, and nothing was measured
// but what `speed` says.
class RubickReference {
 public:
  explicit RubickReference(const ClusterState& state) : state_(state) {}
  std::vector<Gpus> sizes() {
    left_ = gpus_there(state_);
    std::vector<Gpus> sizes(state_.jobs.size(), 0);
    const std::vector<std::size_t> order = in_order();
    for (const std::size_t i : order) {
      const Job& j = state_.jobs[i];
      if (j.refused.empty() && j.min <= left_) left_ -= sizes[i] = j.min;
    }
    for (const std::size_t i : order) {  // those that keep what they have
      const Job& j = state_.jobs[i];
      const Gpus more = std::ssize(j.held) - sizes[i];
      if (sizes[i] == 0 || state_.now_ms - j.allocated_ms >= 8'700'000 || more <= 0) continue;
      if (more > left_) continue;
      left_ -= more;
      sizes[i] += more;
    }
    while (true) {
      double steepest = 0;
      std::size_t who = 0;
      Gpus to = 0;
      for (const std::size_t i : order) {
        if (sizes[i] == 0) continue;
        for (const Gpus n : curve(i)) {
          if (n <= sizes[i] || n - sizes[i] > left_) continue;
          const double slope =
              (speed(i, n) - speed(i, sizes[i])) / most(i) / static_cast<double>(n - sizes[i]);
          if (slope <= steepest * (1 + 1e-12)) continue;
          steepest = slope;
          who = i;
          to = n;
        }
      }
      if (to == 0) return sizes;
      left_ -= to - sizes[who];
      sizes[who] = to;
    }
  }

 private:
  double speed(std::size_t i, Gpus n) const {
    for (const ThroughputPoint& p : state_.jobs[i].measured)
      if (p.gpus == n) return p.tokens_per_second;
    return prior(n);
  }
  double most(std::size_t i) const {
    double most = 0;
    for (Gpus n = state_.jobs[i].min; n <= state_.jobs[i].max; ++n)
      most = std::max(most, speed(i, n) / static_cast<double>(n));
    return most;
  }
  std::vector<Gpus> curve(std::size_t i) const {
    std::vector<Gpus> sizes = {state_.jobs[i].min};
    for (Gpus n = state_.jobs[i].min + 1; n <= state_.jobs[i].max; ++n)
      if (speed(i, n) >=
          speed(i, sizes.back()) * (1 + 0.01 * static_cast<double>(n - sizes.back())))
        sizes.push_back(n);
    return sizes;
  }
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i) order.push_back(i);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return state_.jobs[i].queued_at; });
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) {
      const Job& j = state_.jobs[i];
      if (!j.held.empty() || !j.refused.empty()) return 0.0;
      return speed(i, j.min) / static_cast<double>(j.min) / most(i);
    });
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return state_.jobs[i].held.empty(); });
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::size_t i) { return state_.jobs[i].priority; });
    return order;
  }

  const ClusterState& state_;
  Gpus left_ = 0;
};

TEST(Rubick, SharesOutAsTheRuleSaysOnDrawnStates) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterState state = drawn(seed);
    Rng rng(seed + 1'000);
    for (Job& j : state.jobs) {
      if (rng.chance(0.3)) continue;
      double speed = 1;
      for (Gpus n = j.min; n <= j.max; ++n) {
        speed *= 1 + static_cast<double>(rng.below(8)) / 10;
        j.measured.push_back({"A", n, speed});
      }
    }
    EXPECT_EQ(targets_of(state, "rubick").sizes, RubickReference(state).sizes());
  }
}

}  // namespace
}  // namespace rubato::sched
