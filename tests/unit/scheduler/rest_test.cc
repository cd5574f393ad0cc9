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

}  // namespace
}  // namespace rubato::sched
