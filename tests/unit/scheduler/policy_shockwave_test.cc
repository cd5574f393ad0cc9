// The policy `shockwave`, and the window that it plans.
#include "scheduler/policy/shockwave_window.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>
#include <numeric>
#include <optional>

namespace rubato::sched {
namespace {

constexpr TimeMs kHourMs = 3'600'000;

Job trained(const std::string& id, double done_h, double left_h, double age_h) {
  Job j = job(id, 1, 1);
  j.attained_gpu_ms = std::llround(done_h * kHourMs);
  j.remaining_ms = std::llround(left_h * kHourMs);
  j.duration_ms = *j.remaining_ms + j.attained_gpu_ms;
  j.queued_at = (100 - age_h) * 3600;
  return j;
}

// x is the oldest and the shortest, y has had the least, z has the most before it: for one GPU.
ClusterState three_for_one_gpu() {
  ClusterState state =
      cluster({node("n1", 1, 1)},
              {trained("x", 0.8, 0.2, 1), trained("y", 0.5, 1.5, 0.7), trained("z", 1, 99, 0.9)});
  state.now_ms = 100 * kHourMs;
  return state;
}

TEST(Shockwave, PlansWhatNoSimplerPolicyDoes) {
  EXPECT_EQ(sizes_after(three_for_one_gpu(), "shockwave"), (Sizes{{"z", 1}}));
  EXPECT_EQ(who_plans_the_same(three_for_one_gpu(), "shockwave"), Nobody{});
}

// Without it y's progress is worth most: 3.47 / 2 h, against 61.1 / 100 h and 1.12 / 1 h.
TEST(Shockwave, TheLongestTimeLeftDecides) {
  EXPECT_EQ(sizes_after(three_for_one_gpu(), "shockwave", {{"longestWeight", 0}}),
            (Sizes{{"y", 1}}));
}

// x should be done after 3 h, and is there for 20: it counts (20.6 / 3)^5 times as much.
TEST(Shockwave, WhoIsLateCountsMore) {
  ClusterState state = three_for_one_gpu();
  state.jobs[0].queued_at = 80 * 3600;
  EXPECT_EQ(sizes_after(state, "shockwave", {{"longestWeight", 0}}), (Sizes{{"x", 1}}));
  EXPECT_EQ(sizes_after(state, "shockwave", {{"longestWeight", 0}, {"rho", 7}}), (Sizes{{"y", 1}}));
}

// y gives its GPU, which z waits for, when a round begins; half a minute later it keeps it.
TEST(Shockwave, TurnsChangeWhereARoundBegins) {
  ClusterState state = three_for_one_gpu();
  Job& y = state.jobs[1];
  y.started = true;
  y.allocated_ms = state.now_ms - 60'000;
  y.held.push_back({0, "n1", "A", 1});
  state.nodes[0].free.gpus = 0;
  EXPECT_EQ(sizes_after(state, "shockwave"), Sizes{});
  state.now_ms += 30'000;
  EXPECT_EQ(sizes_after(state, "shockwave"), (Sizes{{"y", 1}}));
  EXPECT_EQ(make_policy("shockwave", {}).value()->next_wake(state), 100 * kHourMs + 120'000);
}

TEST(ShockwaveWindow, TheLogarithmIsExactAtItsKnots) {
  EXPECT_NEAR(log_of_progress(0), std::log(1e-6), 1e-12);
  for (const double knot : {0.2, 0.4, 0.6, 0.8, 1.0})
    EXPECT_NEAR(log_of_progress(knot), std::log(knot), 1e-12);
  EXPECT_NEAR(log_of_progress(0.3), (std::log(0.2) + std::log(0.4)) / 2, 1e-12);
}

// The best plan of one window by another way: where the longest time left is given, each job has a
// least part, and what is left of the GPUs goes to the steepest pieces of progress.
class Market {
 public:
  Market(const std::vector<WindowJob>& jobs, double gpus, const WindowGoal& goal)
      : jobs_(jobs), gpus_(gpus), goal_(goal) {
    double asked = 0;
    for (const WindowJob& j : jobs_) asked += j.gpus;
    share_ = std::min(1.0, gpus / asked);
  }
  double fair_s(const WindowJob& j) const { return (j.done_s + j.left_s) / share_; }
  double rho(const WindowJob& j) const { return (j.age_s + j.left_s / share_) / fair_s(j); }
  double fair_part(const WindowJob& j) const {
    const double after = goal_.rho * fair_s(j) - j.age_s - goal_.window_s;
    return std::max((j.left_s - share_ * after) / goal_.window_s, 0.0);
  }
  double most(const WindowJob& j) const { return std::min(1.0, j.left_s / goal_.window_s); }

  double value(const std::vector<double>& parts, bool is_fair) const {
    double sum = 0;
    double longest = 0;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const double after = jobs_[i].done_s + parts[i] * goal_.window_s;
      sum +=
          weight(jobs_[i], is_fair) * log_of_progress(after / (jobs_[i].done_s + jobs_[i].left_s));
      longest = std::max(longest, jobs_[i].left_s - parts[i] * goal_.window_s);
    }
    return sum / static_cast<double>(jobs_.size()) - goal_.longest_weight * longest;
  }
  // None: there is no plan.
  std::optional<double> best(bool is_fair) const {
    double high = 0;
    for (const WindowJob& j : jobs_) high = std::max(high, j.left_s);
    if (!with_longest(high, is_fair)) return std::nullopt;
    double low = 0;
    double least = high;  // for which there is a plan
    for (int k = 0; k < 100; ++k) {
      const double middle = (low + least) / 2;
      (with_longest(middle, is_fair) ? least : low) = middle;
    }
    low = least;
    for (int k = 0; k < 200; ++k) {
      const double a = low + (high - low) / 3;
      const double b = high - (high - low) / 3;
      if (*with_longest(a, is_fair) < *with_longest(b, is_fair))
        low = a;
      else
        high = b;
    }
    return std::max(*with_longest(least, is_fair), *with_longest(high, is_fair));
  }

 private:
  double weight(const WindowJob& j, bool is_fair) const {
    return is_fair || rho(j) <= goal_.rho ? j.weight : j.weight * std::pow(rho(j), goal_.lambda);
  }
  std::optional<double> with_longest(double longest_s, bool is_fair) const {
    struct Piece {
      double density;
      std::size_t job;
      double part;
    };
    std::vector<double> parts;
    std::vector<Piece> pieces;
    double left = gpus_;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const WindowJob& j = jobs_[i];
      double part = std::max(is_fair ? fair_part(j) : 0, (j.left_s - longest_s) / goal_.window_s);
      part = std::max(part, 0.0);
      if (part > most(j) + 1e-12) return std::nullopt;
      left -= part * j.gpus;
      parts.push_back(part);
      const double total = j.done_s + j.left_s;
      const double now = (j.done_s + part * goal_.window_s) / total;
      for (const double knot : {0.0, 0.2, 0.4, 0.6, 0.8}) {
        const double from = std::max(knot, now);
        const double width = knot + 0.2 - from;
        if (width <= 1e-15) continue;
        const double slope = (log_of_progress(knot + 0.2) - log_of_progress(knot)) / 0.2;
        pieces.push_back({weight(j, is_fair) * slope * goal_.window_s / total / j.gpus, i,
                          width * total / goal_.window_s});
      }
    }
    if (left < -1e-12) return std::nullopt;
    std::ranges::stable_sort(pieces, std::greater(), &Piece::density);
    for (const Piece& piece : pieces) {
      const WindowJob& j = jobs_[piece.job];
      const double more =
          std::min({piece.part, most(j) - parts[piece.job], std::max(left, 0.0) / j.gpus});
      parts[piece.job] += std::max(more, 0.0);
      left -= std::max(more, 0.0) * j.gpus;
    }
    return value(parts, is_fair);
  }

  const std::vector<WindowJob>& jobs_;
  double gpus_;
  WindowGoal goal_;
  double share_ = 1;
};

TEST(ShockwaveWindow, IsAsGoodAsTheMarketOnDrawnWindows) {
  int fair = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto draw = [&](std::uint64_t bound) { return static_cast<double>(rng.below(bound)); };
    std::vector<WindowJob> jobs;
    for (std::uint64_t k = 1 + rng.below(6); k > 0; --k)
      jobs.push_back({.weight = 1 + draw(2),
                      .gpus = 1 + draw(4),
                      .done_s = rng.chance(0.3) ? 0 : 100 * draw(50),
                      .left_s = 100 * (1 + draw(80)),
                      .age_s = 100 * draw(200)});
    const double gpus = 4 + draw(5);
    const WindowGoal goal{.window_s = 600 * (1 + draw(4)),
                          .longest_weight = rng.chance(0.3) ? 0 : 1e-3,
                          .rho = 1 + draw(4),
                          .lambda = draw(4)};
    const WindowPlan plan = plan_window(jobs, gpus, goal);
    const Market market(jobs, gpus, goal);
    const bool is_fair = market.best(true).has_value();
    fair += is_fair ? 1 : 0;
    EXPECT_EQ(plan.is_fair, is_fair);
    const double best = market.best(is_fair).value();
    EXPECT_NEAR(market.value(plan.part, is_fair), best, 1e-6 * (1 + std::abs(best)));
    double used = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      used += plan.part[i] * jobs[i].gpus;
      EXPECT_GE(plan.part[i], (is_fair ? market.fair_part(jobs[i]) : 0) - 1e-6);
      EXPECT_LE(plan.part[i], market.most(jobs[i]) + 1e-6);
      EXPECT_EQ(plan.late[i] != 0, !is_fair && market.rho(jobs[i]) > goal.rho);
    }
    EXPECT_LE(used, gpus + 1e-6);
  }
  EXPECT_GT(fair, 50);
  EXPECT_LT(fair, 250);
}

}  // namespace
}  // namespace rubato::sched
