// The policy `themis`.
#include "scheduler/policy/themis.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <cmath>
#include <functional>

namespace rubato::sched {
namespace {

constexpr TimeMs kHour = 3'600'000;

Job waiting(Job j, TimeMs since_ms, TimeMs left_ms) {
  j.queued_at = static_cast<double>(100 * kHour - since_ms) / 1000;
  j.duration_ms = j.remaining_ms = left_ms;
  return j;
}

// `short` is the youngest, and has been slowed down most.
ClusterState three_for_eight_gpus() {
  ClusterState state =
      cluster({node("n1", 8, 8)}, {waiting(job("first", 1, 8), 20 * kHour, 90 * kHour),
                                   waiting(job("old", 4, 8), 10 * kHour, 9 * kHour),
                                   waiting(job("short", 4, 8), kHour, kHour / 10)});
  state.now_ms = 100 * kHour;
  return state;
}

// One of three bids, and wins all that makes it faster.
TEST(Themis, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = three_for_eight_gpus();
  EXPECT_EQ(sizes_after(state, "themis"), (Sizes{{"short", 8}}));
  EXPECT_EQ(who_plans_the_same(state, "themis"), Nobody{});
}

// Its mechanism is the auction: where nobody bids, minimums go by age, and steps in turn.
TEST(Themis, WithoutAnAuctionTheOldestGoFirst) {
  EXPECT_EQ(sizes_after(three_for_eight_gpus(), "themis", {{"fairness", 1}}),
            (Sizes{{"first", 3}, {"old", 5}}));
}

// `a` and `b` are alike, `c` is longer; each is as fast as it has GPUs.
ClusterState two_and_one(Gpus min) {
  ClusterState state = cluster(
      {node("n1", 8, 8)}, {waiting(job("a", min, 8), 0, kHour), waiting(job("b", min, 8), 0, kHour),
                           waiting(job("c", min, 8), 0, 9 * kHour)});
  state.now_ms = 100 * kHour;
  for (Job& j : state.jobs)
    for (const Gpus n : {1, 2, 4, 8}) j.measured.push_back({"A", n, static_cast<double>(n)});
  return state;
}

// `a` and `b` bid, and win 4 and 4. Alone each would have had 8, so each keeps the part 4 / 8 of
// its win. Of the rest `c` gets its minimum, then each a step in turn.
TEST(Themis, WinnersPayWhatTheOthersLose) {
  EXPECT_EQ(sizes_after(two_and_one(1), "themis", {{"fairness", 0.4}}),
            (Sizes{{"a", 3}, {"b", 3}, {"c", 2}}));
}

// With a minimum of 4, 8 and none are better than 4 and 4: 30 and 80 minutes, for who has none
// waits for a lease of 20. `a` would keep 8 · 30 / 80 = 3, which is below its minimum.
TEST(Themis, NobodyPaysBelowItsMinimum) {
  EXPECT_EQ(sizes_after(two_and_one(4), "themis", {{"fairness", 0.4}}),
            (Sizes{{"a", 4}, {"c", 4}}));
}

// Of more than kUnitsMost GPUs units of several are auctioned: where sizes are whole units, as if
// each were one GPU.
TEST(Themis, ManyGpusAreSharedOutAsFewAre) {
  constexpr Gpus kTimes = 12'500;
  static_assert(8 * kTimes > Themis::kUnitsMost);
  ClusterState many = two_and_one(1);
  many.nodes = {node("n1", 8 * kTimes, 8 * kTimes)};
  for (Job& j : many.jobs) {
    j.min *= kTimes;
    j.max *= kTimes;
    j.per_pod.gpus = kTimes;
    for (ThroughputPoint& point : j.measured) point.gpus *= kTimes;
  }
  EXPECT_EQ(targets_of(two_and_one(1), "themis", {{"fairness", 0.4}}).sizes,
            (std::vector<Gpus>{3, 3, 2}));
  EXPECT_EQ(targets_of(many, "themis", {{"fairness", 0.4}}).sizes,
            (std::vector<Gpus>{3 * kTimes, 3 * kTimes, 2 * kTimes}));
}

TEST(Themis, ALeaseIsKeptUntilItEnds) {
  ClusterState state =
      cluster({node("n1", 1, 0)}, {waiting(running("holds", 1, 1, {"n1"}), kHour, 90 * kHour),
                                   waiting(job("needs", 1, 1), kHour, kHour / 10)});
  state.now_ms = 100 * kHour;
  state.jobs[0].allocated_ms = state.now_ms - kHour / 4;
  EXPECT_EQ(sizes_after(state, "themis"), (Sizes{{"holds", 1}}));
  const auto themis = make_policy("themis", {}).value();
  EXPECT_EQ(themis->next_wake(state), state.now_ms + kHour / 12);
  state.now_ms += kHour / 12;
  EXPECT_EQ(sizes_after(state, "themis"), Sizes{});  // it is preempted
  EXPECT_EQ(themis->next_wake(state), std::nullopt);
}

// What the rule makes of a state whose nodes are of one type and have no quotas, and where every
// size is allowed: all splits are looked at.
class ThemisReference {
 public:
  ThemisReference(const ClusterState& state, double fairness, TimeMs lease)
      : state_(state), fairness_(fairness), lease_(lease), sizes_(state.jobs.size(), 0) {
    left_ = gpus_there(state);
    const auto many = std::ranges::count_if(state.jobs, [](auto& j) { return j.refused.empty(); });
    share_ = static_cast<double>(left_) / static_cast<double>(std::max<std::ptrdiff_t>(many, 1));
    for (const std::int64_t priority : {1, 0}) serve(priority);
  }
  const std::vector<Gpus>& sizes() const { return sizes_; }

 private:
  static double pace(const Job& j, double gpus) {  // in that of its minimum
    const auto at = [](double n) { return 1 / (0.95 / n + 0.05); };
    if (gpus < static_cast<double>(j.min)) return gpus / static_cast<double>(j.min);
    const double whole = std::floor(std::min(gpus, static_cast<double>(j.max)));
    return at(whole) / at(static_cast<double>(j.min));
  }
  double rho(std::size_t i, Gpus gpus) const {
    const Job& j = state_.jobs[i];
    const double had = static_cast<double>(j.attained_gpu_ms) / static_cast<double>(j.min);
    const double left = std::max(j.remaining_ms ? static_cast<double>(*j.remaining_ms) : had, 1e3);
    const double all = j.duration_ms ? static_cast<double>(*j.duration_ms) : had + left;
    double takes = static_cast<double>(state_.now_ms) - j.queued_at * 1000;
    takes +=
        gpus > 0 ? left / pace(j, static_cast<double>(gpus)) : left + static_cast<double>(lease_);
    return takes / (all / pace(j, share_));
  }
  std::int64_t worth(std::size_t i, Gpus gpus) const {
    return std::llround(std::log(rho(i, gpus)) * -4294967296.0);
  }
  // The greatest worth of those from the k-th on, and the split that has it.
  std::pair<std::int64_t, std::vector<Gpus>> best(const std::vector<std::size_t>& bidders,
                                                  std::size_t k, Gpus left) const {
    if (k == bidders.size()) return {0, {}};
    const std::size_t i = bidders[k];
    std::optional<std::pair<std::int64_t, std::vector<Gpus>>> found;
    for (Gpus to = state_.jobs[i].max; to >= sizes_[i]; --to) {
      if (to - sizes_[i] > left || (to > 0 && to < state_.jobs[i].min)) continue;
      auto rest = best(bidders, k + 1, left - (to - sizes_[i]));
      rest.first += worth(i, to);
      if (found && rest.first <= found->first) continue;
      rest.second.insert(rest.second.begin(), to);
      found = std::move(rest);
    }
    return *found;
  }
  void auction(const std::vector<std::size_t>& bidders) {
    const auto [all, split] = best(bidders, 0, left_);
    std::vector<Gpus> to(bidders.size());
    for (std::size_t k = 0; k < bidders.size(); ++k) {
      const std::size_t i = bidders[k];
      to[k] = split[k];
      if (split[k] == sizes_[i]) continue;
      auto others = bidders;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(k));
      const std::int64_t lost = best(others, 0, left_).first - (all - worth(i, split[k]));
      const double part = std::exp(static_cast<double>(lost) / -4294967296.0);
      const auto more = static_cast<Gpus>(part * static_cast<double>(split[k] - sizes_[i]) + 1e-6);
      to[k] = std::max(sizes_[i] + std::max<Gpus>(more, 1), state_.jobs[i].min);
    }
    for (std::size_t k = 0; k < bidders.size(); ++k) {
      left_ -= to[k] - sizes_[bidders[k]];
      sizes_[bidders[k]] = to[k];
    }
  }
  void serve(std::int64_t priority) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i)
      if (state_.jobs[i].refused.empty() && state_.jobs[i].priority == priority) all.push_back(i);
    std::ranges::stable_sort(all, {}, [&](std::size_t i) { return state_.jobs[i].queued_at; });
    const auto holds = [&](std::size_t i) { return !state_.jobs[i].held.empty(); };
    for (const std::size_t i : all) {
      const Job& j = state_.jobs[i];
      if (!holds(i) || state_.now_ms - j.allocated_ms >= lease_ || left_ < j.min) continue;
      left_ -= sizes_[i] = j.min;
    }
    // As whole lists are made: who has a lease first.
    std::ranges::stable_partition(all, [&](std::size_t i) { return sizes_[i] > 0; });
    auto bidders = all;
    std::erase_if(bidders, [&](std::size_t i) { return sizes_[i] == state_.jobs[i].max; });
    std::vector<double> need(state_.jobs.size());
    for (const std::size_t i : all) need[i] = rho(i, sizes_[i]);
    std::ranges::stable_sort(bidders, std::greater(), [&](std::size_t i) { return need[i]; });
    const auto able = static_cast<double>(bidders.size());
    bidders.resize(static_cast<std::size_t>(std::ceil((1 - fairness_) * able - 1e-9)));
    auto rest = all;
    std::erase_if(rest, [&](std::size_t i) { return std::ranges::count(bidders, i) > 0; });
    auction(bidders);
    std::ranges::stable_partition(rest, holds);
    rest.insert(rest.end(), bidders.begin(), bidders.end());
    for (const std::size_t i : rest)
      if (sizes_[i] == 0 && state_.jobs[i].min <= left_) left_ -= sizes_[i] = state_.jobs[i].min;
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (const std::size_t i : rest) {
        if (left_ == 0 || sizes_[i] == 0 || sizes_[i] == state_.jobs[i].max) continue;
        ++sizes_[i];
        --left_;
        has_grown = true;
      }
    }
  }

  const ClusterState& state_;
  double fairness_;
  TimeMs lease_;
  Gpus left_ = 0;
  double share_ = 0;
  std::vector<Gpus> sizes_;
};

TEST(Themis, GivesOutGpusAsTheRuleSaysOnDrawnStates) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    for (const double fairness : {0.0, 0.5, 0.8, 1.0}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", fairness " + std::to_string(fairness));
      const ClusterState state = drawn(seed);
      EXPECT_EQ(targets_of(state, "themis", {{"fairness", fairness}}).sizes,
                ThemisReference(state, fairness, 1'200'000).sizes());
    }
  }
}

}  // namespace
}  // namespace rubato::sched
