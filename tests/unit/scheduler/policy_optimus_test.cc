// The policy `optimus`.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

Job lasting_from_start(Job j, TimeMs remaining_ms) {
  j.remaining_ms = j.duration_ms = remaining_ms;
  return j;
}

// The longer job has most of what is left over.
TEST(Optimus, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state =
      cluster({node("n1", 8, 8)}, {lasting_from_start(job("a", 1, 8), 1'000'000),
                                   lasting_from_start(job("b", 1, 8), 20'000'000)});
  EXPECT_EQ(sizes_after(state, "optimus"), (Sizes{{"a", 2}, {"b", 6}}));
  EXPECT_EQ(who_plans_the_same(state, "optimus"), Nobody{});
}

// Its mechanism is the gain of time left: where both have as much left, they share evenly.
TEST(Optimus, EqualsShareEvenly) {
  const ClusterState state =
      cluster({node("n1", 8, 8)}, {lasting_from_start(job("a", 1, 8), 1'000'000),
                                   lasting_from_start(job("b", 1, 8), 1'000'000)});
  EXPECT_EQ(sizes_after(state, "optimus"), (Sizes{{"a", 4}, {"b", 4}}));
}

double time_left(const Job& j, Gpus n) {
  const auto step = [](Gpus gpus) { return 0.95 / static_cast<double>(gpus) + 0.05; };
  return static_cast<double>(*j.remaining_ms) * step(n) / step(j.min);
}

// Of all ways to share out so many GPUs, each job at least its minimum.
double least_sum(const std::vector<Job>& jobs, std::size_t from, Gpus gpus) {
  if (from == jobs.size()) return 0;
  double least = 1e300;
  for (Gpus n = jobs[from].min; n <= std::min(jobs[from].max, gpus); ++n)
    least = std::min(least, time_left(jobs[from], n) + least_sum(jobs, from + 1, gpus - n));
  return least;
}

TEST(Optimus, NoOtherSharingLeavesLessTimeInSum) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<Job> jobs;
    Gpus gpus = static_cast<Gpus>(rng.below(8));
    for (std::uint64_t i = 0; i < 1 + rng.below(4); ++i) {
      const Gpus min = 1 + static_cast<Gpus>(rng.below(3));
      jobs.push_back(lasting_from_start(
          job("j" + std::to_string(i), min, min + static_cast<Gpus>(rng.below(6))),
          1'000 * (1 + static_cast<TimeMs>(rng.below(100)))));
      gpus += min;
    }
    const Targets targets = targets_of(cluster({node("n1", gpus, gpus)}, jobs), "optimus");
    double sum = 0;
    Gpus given = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      sum += time_left(jobs[i], targets.sizes[i]);
      given += targets.sizes[i];
    }
    EXPECT_LE(given, gpus);
    EXPECT_NEAR(sum, least_sum(jobs, 0, gpus), 1e-6);
  }
}

}  // namespace
}  // namespace rubato::sched
