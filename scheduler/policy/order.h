// What policies share that only order jobs.
#pragma once

#include "scheduler/model/problem.h"

#include <algorithm>
#include <vector>

namespace rubato::sched {

// All jobs: by priority, the highest first; among equals by key(index), the least first; then the
// one that has waited longest; then by id.
template <class Key>
std::vector<JobIndex> order_by(const Problem& problem, const Key& key) {
  using Rank = decltype(key(JobIndex{}));
  struct Ranked {
    std::int64_t priority;
    Rank rank;
    double queued_at;
    JobIndex index;
  };
  std::vector<Ranked> ranked;
  ranked.reserve(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    ranked.push_back({job.priority, key(j), job.queued_at, j});
  }
  std::sort(ranked.begin(), ranked.end(), [&](const Ranked& a, const Ranked& b) {
    if (a.priority != b.priority) return a.priority > b.priority;
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.queued_at != b.queued_at) return a.queued_at < b.queued_at;
    return problem.job(a.index).id < problem.job(b.index).id;
  });
  std::vector<JobIndex> order;
  order.reserve(ranked.size());
  for (const Ranked& one : ranked) order.push_back(one.index);
  return order;
}

}  // namespace rubato::sched
