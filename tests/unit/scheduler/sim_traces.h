// Small traces for the tests of the simulator, and what became of them in seconds.
#pragma once

#include "scheduler/policy/registry.h"
#include "scheduler/sim/simulate.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::sched::sim {

// 10 s to start, 20 s to start again, 30 s for any change; GPUs change hands at once.
inline CostModel simple_costs() {
  return {.name = "simple", .start_ms = 10'000, .restart_ms = 20'000, .rescale_ms = 30'000};
}
// Start and restart as above; newcomers prepare for 15 s, then 2 s of stall; leavers take 5 s.
inline CostModel gentle_costs() {
  return {.name = "gentle",
          .start_ms = 10'000,
          .restart_ms = 20'000,
          .release_ms = 5'000,
          .rescale_ms = 2'000,
          .join_ms = 15'000};
}

// Trains for `seconds` on `gpus` GPUs of any type; not elastic.
inline TraceJob rigid(const std::string& id, TimeMs submit_s, Gpus gpus, double seconds) {
  TraceJob job;
  job.id = id;
  job.submit_ms = submit_s * 1000;
  job.request = job.min = job.max = gpus;
  job.work = seconds;
  job.speed.add("*", {gpus, 1.0});
  return job;
}

// Twice the GPUs, twice the speed: one unit a second on each.
inline TraceJob linear(const std::string& id, TimeMs submit_s, Gpus min, Gpus max, double work) {
  TraceJob job = rigid(id, submit_s, min, work);
  job.max = max;
  job.speed = {};
  job.speed.add("*", {min, static_cast<double>(min)});
  job.speed.add("*", {max, static_cast<double>(max)});
  return job;
}

// A short search decides by the same rules as a long one.
inline std::map<std::string, double> quick_parameters(const std::string& policy) {
  if (policy == "pollux") return {{"generations", 10}};
  return {};
}

inline SimResult play(const std::string& cluster, std::vector<TraceJob> jobs,
                      const std::string& policy, const SimOptions& options) {
  const auto scheduler = scheduler_named(policy, quick_parameters(policy));
  EXPECT_TRUE(scheduler.ok()) << policy;
  const auto result =
      simulate(parse_cluster(cluster).value(), std::move(jobs), **scheduler, options);
  EXPECT_TRUE(result.ok()) << result.error().what();
  return result.value();
}
inline SimResult play(const std::string& cluster, std::vector<TraceJob> jobs,
                      const std::string& policy, const CostModel& costs = simple_costs()) {
  return play(cluster, std::move(jobs), policy, SimOptions{.costs = costs});
}

inline const JobResult& of(const SimResult& result, const std::string& id) {
  for (const JobResult& job : result.jobs)
    if (job.id == id) return job;
  ADD_FAILURE() << "no job " << id;
  return result.jobs.front();
}
inline double start_s(const SimResult& result, const std::string& id) {
  return static_cast<double>(of(result, id).start_ms) / 1000.0;
}
inline double finish_s(const SimResult& result, const std::string& id) {
  return static_cast<double>(of(result, id).finish_ms) / 1000.0;
}

}  // namespace rubato::sched::sim
