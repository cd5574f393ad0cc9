// The trace simulator tells the truth of the product: mean completion times agree within 2 %.
#include "tests/sim/truth.h"

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr double kBound = 0.02;

// What the status says of a job's speed is what it does at that size, from the first time on: no
// step among other members counts.
void expect_true_speeds(const TruthTrace& trace, const Played& played, const Figures& figures) {
  for (std::size_t i = 0; i < trace.jobs.size(); ++i)
    for (const auto& [gpus, told] : played.jobs[i].told) {
      const double speed = figures.speeds.at(trace.jobs[i].micro_batches).at(gpus);
      EXPECT_NEAR(told.least, speed, 0.1 * speed) << trace.jobs[i].name << " " << gpus;
      EXPECT_NEAR(told.most, speed, 0.1 * speed) << trace.jobs[i].name << " " << gpus;
    }
}

// By order of arrival, by work left, by turns, at sizes that grow, and the default.
TEST(Truth, MeanCompletionTimesAgree) {
  const TruthTrace trace = draw_truth({});
  EXPECT_GE(offered_load(trace), 1.2);
  const Figures figures = calibrate(trace);
  for (const char* name : {"fifo", "srtf", "las", "marginalThroughput", "rubato"}) {
    TruthPolicy policy{.name = name};
    // At its standard, a minute, jobs that began in one round have had equal time when it ends, and
    // tenths of seconds decide who goes on (docs/simulate.md).
    if (policy.name == "las") policy.parameters["quantumSeconds"] = 45;
    const Played real = play(trace, policy);
    ASSERT_EQ(real.broken, "") << name;
    EXPECT_LE(real.length, 30min) << name;
    expect_true_speeds(trace, real, figures);
    const auto simulated = simulate(trace, policy, figures);
    ASSERT_TRUE(simulated.ok()) << name << ": " << simulated.error().what();
    const double mean = mean_jct_seconds(real);
    EXPECT_NEAR(mean_jct_seconds(*simulated), mean, kBound * mean) << name;
  }
}

// A turn ends when the policy said that it would, not in the round after that.
TEST(Truth, ARoundComesWhenThePolicyNamedIt) {
  TruthTrace trace;
  const int all = trace.gpus();
  trace.jobs = {{.name = "a", .submit_at = 10s, .steps = 400, .gpus = all},
                {.name = "b", .submit_at = 12s, .steps = 20, .gpus = all}};
  const Played played =
      play(trace, {.name = "las", .parameters = {{"quantumSeconds", 20}}, .round_seconds = 300});
  ASSERT_EQ(played.broken, "");
  const Lived& a = played.jobs[0];
  ASSERT_GE(a.held.size(), 2u);
  EXPECT_EQ(a.held[1].gpus, 0);
  const double turn = std::chrono::duration<double>(a.held[1].at - a.held[0].at).count();
  EXPECT_NEAR(turn, 20, 0.2);
}

}  // namespace
}  // namespace rubato::sim
