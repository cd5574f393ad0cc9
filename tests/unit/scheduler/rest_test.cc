// Where nothing comes and goes plans end, also where nodes run out of CPU, memory or pods before
// they run out of GPUs.
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/drawn_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Of each policy one may go on: what others claim by GPUs alone is not there for them
// (docs/limits.md).
TEST(EveryPolicy, ComesToRestWhereCpuMemoryOrPodsRunOut) {
  for (const Descriptor& policy : all_policies()) {
    const PolicyConfig config{.policy = policy.name};
    int restless = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      ClusterState state = drawn_cluster(seed, config);
      Rng scarce(seed + 5'000'000);
      draw_scarce(scarce, state);
      if (!make_plan(at_rest(state, config, 40, 0), config).actions.empty()) ++restless;
    }
    EXPECT_LE(restless, policy.name == "rubato" ? 0 : 1) << policy.name;
  }
}

// A sweep: alike but for the work that is left, and more of them than GPUs of the type on which
// they are faster. No one knows how fast they are on the third.
ClusterState sweep(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  for (int n = 0; n < 12; ++n)
    state.nodes.push_back(node("n" + std::to_string(n), 4, 4, n < 4 ? "A" : n < 8 ? "B" : "C"));
  for (int i = 0; i < 36; ++i) {
    Job one = job("j" + std::to_string(i), 1, 6);
    one.queued_at = i;
    one.remaining_ms = static_cast<TimeMs>((1 + rng.below(600)) * (1 + rng.below(600)) * 100);
    one.measured = {{"A", 1, 1355}, {"A", 2, 2398}, {"A", 6, 4927},
                    {"B", 1, 1867}, {"B", 2, 3395}, {"B", 6, 7468}};
    state.jobs.push_back(one);
  }
  return state;
}

// Under rubato some take turns in two of twenty (docs/limits.md).
TEST(EveryPolicy, ComesToRestWithJobsThatAreAlikeOnSeveralTypes) {
  for (const Descriptor& policy : all_policies()) {
    const PolicyConfig config{.policy = policy.name};
    int restless = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      ClusterState state = at_rest(sweep(seed), config, 40, 0);
      for (std::size_t i = 0; i < 6; ++i) state.jobs[i].remaining_ms = 10;  // those are nearly done
      if (!make_plan(at_rest(state, config, 40, 0), config).actions.empty()) ++restless;
    }
    EXPECT_LE(restless, policy.name == "rubato" ? 2 : 0) << policy.name;
  }
}

}  // namespace
}  // namespace rubato::sched
