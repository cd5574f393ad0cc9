// Crius (arXiv 2403.16125), a reconstruction. A job's cell is a number of GPUs of one type, at the
// execution plan that is best there; what a cell is worth to a job is its goodput over that of the
// job's best cell. Jobs that run begin with the cell that they have. Then, one waiting job after
// the other, those that have run before the others, by arrival: the cell that is worth most of
// those with room; or, if that makes the sum of all worths larger, a better one for which another
// job takes another cell: a smaller one, or one of another type. What is left over goes, one change
// at a time, to the job that gains most worth by a larger cell or one of another type, leastGain at
// least where it runs.
//
// Nothing is kept of an exchange but what jobs hold. So that the next round makes the same of it,
// nodes must have room for both cells, and who waits for GPUs of its cell that others are leaving
// does not start with less. Cells are no larger than nodes hold without other jobs.
//
// Cells have the job's minimum, what it holds, and powers of two. O(W · R · C) for W = kSearched
// waiting jobs, R running ones and C cells of each; beyond those the best cell with room counts.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Crius : public Policy {
 public:
  static Descriptor describe();
  explicit Crius(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr std::size_t kSearched = 32;

 private:
  double least_gain_;
  double keep_ms_;
  bool searches_;
};

}  // namespace rubato::sched
