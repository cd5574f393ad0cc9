// What scheduler/sim costs: job-rounds a second, by policy. A job-round is one job that is in the
// system while one round is decided; arrivals, ends, starts and placement are part of the time.
//
//   build/bench/bin/simulate_bench [JOBS]
//
// Made traces (seed 1) on 64 nodes of 8 GPUs at a load above what they hold, so that a queue builds
// up. marginalThroughput, whose rounds are the operator's, plays a tenth of the jobs.
#include "common/clock.h"
#include "scheduler/sim/import/generate.h"
#include "scheduler/sim/results.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

namespace rubato::sched::sim {
namespace {

void play(const std::string& policy, std::int64_t jobs) {
  const auto trace = poisson_trace({.seed = 1, .jobs = jobs, .jobs_per_hour = 40});
  const auto scheduler = scheduler_named(policy).value();
  const SystemClock clock;
  const MonoTime began = clock.now();
  const auto result =
      simulate(parse_cluster("64x8:A").value(), trace, *scheduler, {.costs = in_place_costs()});
  if (!result.ok()) {
    fmt::print(stderr, "{}: {}\n", policy, result.error().what());
    std::exit(1);
  }
  const double seconds = std::chrono::duration<double>(clock.now() - began).count();
  fmt::print("{}: {} jobs, {} rounds, jobs a round {:.0f}; million job-rounds/s: {:.2f}\n", policy,
             jobs, result->rounds,
             static_cast<double>(result->job_rounds) / static_cast<double>(result->rounds),
             static_cast<double>(result->job_rounds) / 1e6 / seconds);
}

}  // namespace
}  // namespace rubato::sched::sim

int main(int argc, char** argv) {
  using rubato::sched::sim::play;
  const std::int64_t jobs = std::max(argc > 1 ? std::atoll(argv[1]) : 5'000, 10LL);
  for (const char* policy : {"fifo", "fifoBackfill", "srtf", "tiresias", "rubato"})
    play(policy, jobs);
  play("marginalThroughput", jobs / 10);
  return 0;
}
