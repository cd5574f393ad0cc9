// The policy `qssf`.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

// `gpt-2`, of which nothing is known, waits beside a shorter and younger job; another `gpt` runs.
ClusterState two_for_four_gpus() {
  ClusterState state = cluster({node("n1", 6, 4)},
                               {running("a", 2, 2, {"n1", "n1"}), job("b", 4, 4), job("c", 4, 4)});
  state.jobs[0].name = "team/gpt-1";
  state.jobs[0].duration_ms = state.jobs[0].remaining_ms = 9'000'000;
  state.jobs[1].name = "team/gpt-2";
  state.jobs[2].name = "team/bert-1";
  state.jobs[2].duration_ms = state.jobs[2].remaining_ms = 1'000'000;
  state.jobs[2].queued_at = 9;
  return state;
}

TEST(Qssf, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = two_for_four_gpus();
  EXPECT_EQ(sizes_after(state, "qssf"), (Sizes{{"a", 2}, {"c", 4}}));
  EXPECT_EQ(who_plans_the_same(state, "qssf"), Nobody{});
}

// Its mechanism is the prediction from like jobs: without one that is known, both count alike.
TEST(Qssf, WithoutHistoryTheOlderOneIsFirst) {
  ClusterState state = two_for_four_gpus();
  state.jobs[0].duration_ms.reset();
  EXPECT_EQ(sizes_after(state, "qssf"), (Sizes{{"a", 2}, {"b", 4}}));
}

// 20 s on 4 GPUs are more than 50 s on one.
TEST(Qssf, CountsGpus) {
  ClusterState state = cluster({node("n1", 4, 4)}, {job("wide", 4, 4), job("long", 1, 1)});
  state.jobs[0].duration_ms = 20'000;
  state.jobs[1].duration_ms = 50'000;
  EXPECT_EQ(sizes_after(state, "qssf"), (Sizes{{"long", 1}}));
  EXPECT_EQ(sizes_after(state, "sjf"), (Sizes{{"wide", 4}}));
}

// It holds up a job that would fit, and does not stop one that runs.
TEST(Qssf, TheFirstThatDoesNotFitHoldsUpTheRest) {
  ClusterState state = cluster({node("n1", 4, 2)}, {running("runs", 2, 2, {"n1", "n1"}),
                                                    job("first", 4, 4), job("fits", 2, 2)});
  state.jobs[0].duration_ms = state.jobs[2].duration_ms = 90'000'000;
  state.jobs[1].duration_ms = 1'000;
  EXPECT_EQ(sizes_after(state, "qssf"), (Sizes{{"runs", 2}}));
}

// The mean of those that `is_like` says, in GPU time of `of`; none: there are none.
template <class IsLike>
std::optional<double> predicted(const ClusterState& state, const Job& of, const IsLike& is_like) {
  TimeMs sum = 0, many = 0;
  for (const Job& j : state.jobs) {
    if (!j.duration_ms || !is_like(j)) continue;
    sum += *j.duration_ms;
    ++many;
  }
  if (many == 0) return std::nullopt;
  return static_cast<double>(sum) / static_cast<double>(many) * static_cast<double>(of.min);
}

double qssf_reference(const ClusterState& state, const Job& of) {
  if (of.duration_ms) return static_cast<double>(*of.duration_ms * of.min);
  const auto stem = [](const Job& j) { return j.name.substr(0, j.name.find_last_of('-')); };
  std::optional<double> found;
  const auto or_else = [&](const auto& is_like) {
    if (!found) found = predicted(state, of, is_like);
  };
  or_else([&](const Job& j) { return j.queue == of.queue && stem(j) == stem(of); });
  or_else([&](const Job& j) { return j.queue == of.queue && j.min == of.min; });
  or_else([&](const Job& j) { return j.min == of.min; });
  or_else([](const Job&) { return true; });
  return found.value_or(0);
}

// Who comes before whom, asked of each pair.
TEST(Qssf, OrdersEachPairAsTheRuleSays) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    std::map<JobId, std::size_t> place;
    for (const JobId& id : order_of(state, "qssf")) place.emplace(id, place.size());
    ASSERT_EQ(place.size(), state.jobs.size());
    for (const Job& a : state.jobs) {
      for (const Job& b : state.jobs) {
        bool first = a.id < b.id;
        if (a.queued_at != b.queued_at) first = a.queued_at < b.queued_at;
        const double of_a = qssf_reference(state, a), of_b = qssf_reference(state, b);
        if (of_a != of_b) first = of_a < of_b;
        if (a.priority != b.priority) first = a.priority > b.priority;
        EXPECT_EQ(place.at(a.id) < place.at(b.id), first) << a.id << " " << b.id;
      }
    }
  }
}

}  // namespace
}  // namespace rubato::sched
