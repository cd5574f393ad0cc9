// Quasi-shortest-service-first (Hu et al., SC'21, Helios), a reconstruction: the waiting job with
// the least predicted GPU time goes first; the first that does not fit holds up the rest; nobody is
// preempted.
//
// The predictor's output is the job's duration, where the caller knows it. Where not, it is
// predicted as the paper's rolling estimator does, by the mean of like jobs of which it is known:
//   1. of its queue, named alike but for the part after the last "-"
//   2. of its queue, with as many GPUs      3. of any queue, with as many GPUs      4. of all
// They are the jobs that are there; what has ended is in no ClusterState. A job that nothing is
// like comes first, and becomes known by running. The paper's second predictor, gradient-boosted
// trees, is not in here. O(J log J).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Qssf : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
