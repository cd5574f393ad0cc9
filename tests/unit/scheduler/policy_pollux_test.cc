// The policy `pollux`. Its search has its own test, against all choices: genetic_sizes_test.cc.
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

// Goodput of 1, 2, … GPUs of type A.
Job with_goodput(Job job, const std::vector<double>& goodput) {
  for (std::size_t i = 0; i < goodput.size(); ++i)
    job.goodput.push_back({"A", static_cast<Gpus>(i + 1), 0, goodput[i]});
  return job;
}

// Fair shares are 3 of 6 GPUs; `flat` has 0.8 of its speed there on one GPU, `steep` a third.
ClusterState steep_and_flat() {
  ClusterState state =
      cluster({node("n1", 6, 6)}, {with_goodput(job("steep", 1, 6), {1, 2, 3, 4, 5, 6}),
                                   with_goodput(job("flat", 1, 6), {8, 9, 10, 10.4, 11, 11})});
  state.now_ms = 1'000'000;
  return state;
}

// Sums of inverse speedups: 5 + 1 has 3/5 + 10/8 = 1.85, 4 + 2 has 3/4 + 10/9 = 1.861, 3 + 3 has 2.
TEST(Pollux, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = steep_and_flat();
  EXPECT_EQ(sizes_after(state, "pollux"), (Sizes{{"steep", 5}, {"flat", 1}}));
  EXPECT_EQ(who_plans_the_same(state, "pollux"), Nobody{});
}

// Its mechanism is the power mean: where the least speedup is nearly all that counts, both have 3.
TEST(Pollux, AnotherMeanGivesOtherSizes) {
  EXPECT_EQ(targets_of(steep_and_flat(), "pollux", {{"fairness", -10}}).sizes,
            (std::vector<Gpus>{3, 3}));
}

// 60 s of life, 30 s a change: more GPUs would have to bring more than they cost.
TEST(Pollux, AChangeCostsWhatRestartsTake) {
  ClusterState state =
      cluster({node("n1", 2, 1)}, {with_goodput(running("a", 1, 2, {"n1"}), {1, 1.6})});
  state.now_ms = 60'000;
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{2});  // 60 / 90 * 1.6 > 1
  state.jobs[0].restarts = 1;                                          // 30 / 90 * 1.6 < 1
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{1});
  EXPECT_EQ(targets_of(state, "pollux", {{"restartSeconds", 0}}).sizes, std::vector<Gpus>{2});
}

// At most twice what was measured, and the minimum where nothing was.
TEST(Pollux, TriesTwiceWhatWasMeasured) {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  state.now_ms = 1'000'000;
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{1});
  state.jobs[0].measured = {{"A", 2, 100}};
  EXPECT_EQ(targets_of(state, "pollux").sizes, std::vector<Gpus>{4});
}

TEST(Pollux, OfThoseThatCannotAllRunThoseWithLeastGpuTimeDo) {
  ClusterState state = cluster({node("n1", 1, 1)}, {job("a", 1, 1), job("b", 1, 1)});
  state.jobs[0].attained_gpu_ms = 5;
  EXPECT_EQ(sizes_after(state, "pollux"), (Sizes{{"b", 1}}));
}

TEST(Pollux, TargetsFit) {
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn(seed);
    const Targets targets = targets_of(state, "pollux");
    Gpus sum = 0;
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const Gpus size = targets.sizes[i];
      sum += size;
      EXPECT_TRUE(size == 0 || (size >= state.jobs[i].min && size <= state.jobs[i].max));
    }
    EXPECT_LE(sum, 8 * std::ssize(state.nodes));
  }
}

}  // namespace
}  // namespace rubato::sched
