// Lyra (Li et al., EuroSys'23), a reconstruction of its allocation in two phases. First each job's
// minimum: those that run keep theirs, then the least time left first, nobody is preempted. Then
// the GPUs that are left, by type, are a knapsack: of each job one size at most, worth the time
// that it saves the job, is chosen such that all save most together. It is solved exactly, by
// dynamic programming over GPUs; beyond kUnitsMost GPUs in units of several, of which a size takes
// whole ones.
//
// What it lends from and to inference servers is left out: a cluster has none here. GPUs are
// counted by type: a job gets the type that it holds, else the one that has most left.
// O(J · U · S) for J jobs, U units and S sizes of a job, kSizesMost at most.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Lyra : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;

  static constexpr Gpus kUnitsMost = 1024;
  static constexpr std::size_t kSizesMost = 64;
};

}  // namespace rubato::sched
