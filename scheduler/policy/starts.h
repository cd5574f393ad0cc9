// What policies share that say where jobs start.
#pragma once

#include "scheduler/policy/room.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace rubato::sched {

inline bool may_start(const Problem& problem, JobIndex j) {
  const Job& job = problem.job(j);
  return !job.started && job.held.empty() && problem.takes_part(j);
}

// By job: what it holds, or its minimum.
inline std::vector<Gpus> held_or_minimum(const ClusterState& state) {
  std::vector<Gpus> sizes;
  sizes.reserve(state.jobs.size());
  for (const Job& job : state.jobs)
    sizes.push_back(std::max(effective_gpus(job), size_at_least(job, job.min).value_or(0)));
  return sizes;
}

// Types that have room for its minimum, those with most left first; none: it cannot start.
inline std::vector<TypeIndex> types_with_room(const Problem& problem, JobIndex j,
                                              const Room& room) {
  const auto gpus = size_at_least(problem.job(j), problem.job(j).min);
  std::vector<TypeIndex> types = problem.group(j).types;
  std::erase_if(types, [&](TypeIndex t) { return !gpus || room.left_for(j, t) < *gpus; });
  std::ranges::stable_sort(types, std::greater(), [&](TypeIndex t) { return room.left()[t]; });
  return types;
}

}  // namespace rubato::sched
