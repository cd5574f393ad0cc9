// What policies share that put two jobs on the same GPUs.
#pragma once

#include "scheduler/model/problem.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <vector>

namespace rubato::sched {

constexpr double kBytesPerGib = 1U << 30U;

// Hosts that one job may be told of, in a round.
constexpr std::size_t kHostsMost = 64;

// Jobs with GPUs of their own of which it is known what they ask of GPUs, the least key(job) first,
// equals by id.
template <class Key>
std::vector<JobIndex> possible_hosts(const Problem& problem, const Key& key) {
  std::vector<JobIndex> hosts;
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    if (job.gpu_use && job.guest_of.empty() && effective_gpus(job) > 0) hosts.push_back(j);
  }
  std::ranges::sort(hosts, {}, [&](JobIndex j) -> const JobId& { return problem.job(j).id; });
  std::ranges::stable_sort(hosts, {}, [&](JobIndex j) { return key(problem.job(j)); });
  return hosts;
}

inline void leave_out_taken(const Problem& problem, std::vector<JobIndex>& hosts) {
  std::vector<bool> has_guest(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    if (const auto host = problem.host_of(j)) has_guest[host->value] = true;
  std::erase_if(hosts, [&](JobIndex j) { return has_guest[j.value]; });
}

// Targets::hosts: a job that holds nothing has those of `hosts` that may_pair(guest, host), in that
// order; a guest its host, if may_stay(guest, host). O(waiting jobs · hosts).
template <class MayPair, class MayStay>
std::vector<std::vector<JobIndex>> hosts_by_guest(const Problem& problem,
                                                  const std::vector<JobIndex>& hosts,
                                                  const MayPair& may_pair,
                                                  const MayStay& may_stay) {
  std::vector<std::vector<JobIndex>> by_guest(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    std::vector<JobIndex>& own = by_guest[j.value];
    if (const auto host = problem.host_of(j); host && may_stay(job, problem.job(*host)))
      own.push_back(*host);
    if (job.started || !job.held.empty() || !job.gpu_use || !problem.takes_part(j)) continue;
    for (const JobIndex host : hosts) {
      if (own.size() == kHostsMost) break;
      if (may_pair(job, problem.job(host))) own.push_back(host);
    }
  }
  return by_guest;
}

}  // namespace rubato::sched
