// Whom a policy lets wait for ever. Every policy serves each job in bounded time, unless its own
// page says that some may starve.
#include "tests/unit/scheduler/sim_traces.h"

#include <fmt/core.h>

namespace rubato::sched::sim {
namespace {

constexpr TimeMs kStreamSeconds = 5 * 3600;
constexpr TimeMs kApartSeconds = 150;

// Four GPUs are never enough: whenever a job of one GPU ends another one comes, four are waiting,
// and no two end at once.
std::vector<TraceJob> endless_stream() {
  std::vector<TraceJob> jobs;
  for (int i = 0; i < 4; ++i)
    jobs.push_back(rigid(fmt::format("first-{}", i), 0, 1, 140.0 + 150 * i));
  for (TimeMs at = 0; at < kStreamSeconds; at += kApartSeconds)
    jobs.push_back(rigid(fmt::format("next-{}", at), at, 1, 590));
  return jobs;
}

bool says_that_jobs_starve(const Descriptor& policy) {
  return policy.choose.find("starve") != std::string::npos;
}

// One asks for all GPUs, the other for ten times as long a training as anybody else.
TEST(Starvation, OnlyWhereThePageSaysSo) {
  for (const Descriptor& policy : all_policies()) {
    if (says_that_jobs_starve(policy)) continue;
    for (const TraceJob& victim : {rigid("wide", 400, 4, 600), rigid("long", 400, 1, 6000)}) {
      std::vector<TraceJob> jobs = endless_stream();
      jobs.push_back(victim);
      const SimResult result = play("1x4:A", jobs, policy.name, {.costs = gentle_costs()});
      EXPECT_LT(start_s(result, victim.id), kStreamSeconds) << policy.name << " " << victim.id;
    }
  }
}

// The stream is one that starves somebody: what the pages say is not said for nothing.
TEST(Starvation, ThePagesThatSayItAreRight) {
  for (const char* policy : {"fifoBackfill", "srtf", "afs", "chronus"}) {
    std::vector<TraceJob> jobs = endless_stream();
    jobs.push_back(rigid("wide", 400, 4, 600));
    const SimResult result = play("1x4:A", jobs, policy, {.costs = gentle_costs()});
    EXPECT_GT(start_s(result, "wide"), kStreamSeconds) << policy;
  }
}

}  // namespace
}  // namespace rubato::sched::sim
