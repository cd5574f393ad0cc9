// What policies share that put two jobs on the same GPUs.
#pragma once

#include "scheduler/model/problem.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <map>
#include <vector>

namespace rubato::sched {

constexpr double kBytesPerGib = 1U << 30U;

// Hosts that one job may be told of, in a round: more would make a round quadratic.
constexpr std::size_t kHostsMost = 64;

// Whether a job looks for GPUs of somebody else: it holds none, and may have some.
inline bool looks_for_host(const Problem& problem, JobIndex j) {
  const Job& job = problem.job(j);
  return !job.started && job.held.empty() && job.gpu_use && problem.takes_part(j);
}

// Jobs with GPUs of their own, all of whose pods stay, and of which it is known what they ask of
// GPUs; by how many they have, then by id.
inline std::map<Gpus, std::vector<JobIndex>> possible_hosts(const Problem& problem) {
  std::map<Gpus, std::vector<JobIndex>> hosts;
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    const Gpus gpus = effective_gpus(job);
    if (gpus > 0 && job.guest_of.empty() && job.gpu_use) hosts[gpus].push_back(j);
  }
  for (auto& [gpus, of_size] : hosts)
    std::ranges::sort(of_size, {}, [&](JobIndex j) -> const JobId& { return problem.job(j).id; });
  return hosts;
}

// The jobs that are on GPUs of others, by host.
inline std::vector<bool> has_guests(const Problem& problem) {
  std::vector<bool> has(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    if (const auto host = problem.host_of(j)) has[host->value] = true;
  return has;
}

}  // namespace rubato::sched
