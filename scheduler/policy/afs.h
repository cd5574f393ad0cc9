// AFS-L (Hwang et al., NSDI'21, Algorithm 1), a reconstruction: each job its minimum, the shortest
// first; then one step of size at a time to the winner of a tournament. Of two jobs let a be the
// one that ends first at its present size, p its throughput and p' that at its next size: b wins if
//   (p'_b - p_b) / p'_b > (p'_a - p_a) / p_a
// and else a does. A step of several GPUs counts by the GPU.
//
// A job of which the time left is not known counts as having left what it has had, as AFS-P counts,
// rounded up to 1, 2, 4 … minutes: exact, equals would stop each other before they have trained.
// GPUs are counted by type: a job gets the type that it holds, else the one that has most left.
// O(J · G) for J jobs and G GPUs.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Afs : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
