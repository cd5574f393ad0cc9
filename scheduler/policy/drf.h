// Dominant resource fairness (Ghodsi et al., NSDI'11, Algorithm 1, with the weights of section
// 4.3): a queue's dominant share is the largest share that it has of GPUs, CPU or memory, by its
// weight. The queue with the least dominant share is served next, with its next job's minimum, as
// long as that fits into what is left of the cluster.
//
// Shares are counted from nothing in each round, over jobs that run and that wait, so that the
// order depends on which jobs there are, and not on who holds what. What fits no more comes last
// and displaces nobody. The whole is what is free for jobs and what they hold; GPU types count
// alike. Inside a queue jobs go by age. O(J log J).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Drf : public Policy {
 public:
  static Descriptor describe();
  explicit Drf(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

 private:
  double dominant_share(const Resources& used, const Resources& whole) const;
  double host_weight_;
};

}  // namespace rubato::sched
