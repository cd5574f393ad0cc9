// Optimus (Peng et al., EuroSys'18, section 4.1), a reconstruction: each job its minimum, the
// smallest first; then one step of size at a time to the job whose time left falls most by it, by
// the GPU, until nobody's falls. Where a GPU's gain falls with each further one, the sum of the
// times left is the least that there is. The paper's estimate of convergence is replaced by
// what is known of the work left, and servers and workers by GPUs, as in Pollux's artifact. A job
// of which the time left is not known gets its minimum. O(J log J + G log J) for J jobs and G GPUs.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Optimus : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
