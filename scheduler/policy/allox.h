// AlloX (Le et al., EuroSys'20), a reconstruction: a least-cost matching of the jobs that wait to
// slots (type, position from the end), which is the least sum of completion times that there is.
// The k-th job from the end of one machine delays k jobs, itself among them, by the time p that it
// takes there, so its slot costs k · p. Here a machine is a type with C free GPUs, and a job that
// needs n of them delays those behind it by a part n / C of its time:
//   cost(job, type, s) = p · (1 + s · n / C)   with s = k - 1 jobs behind it
// which is k · p where a job fills its type. The paper's choice is between CPUs and GPUs, for jobs
// of one machine each.
//
// A job runs to its end where it starts, as in Gavel's code of this policy: only jobs that hold
// nothing are matched, to GPUs that nobody holds. Of them the part `alpha` that has waited longest
// takes part, and as many as there are free GPUs at least; kJobsMost at most. Those behind come by
// age. Times on types come from what was measured; a type of which nothing was is as fast as the
// best. O(J³ · T) for J jobs and T types.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Allox : public Policy {
 public:
  static Descriptor describe();
  explicit Allox(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr std::size_t kJobsMost = 200;

 private:
  double alpha_;
};

}  // namespace rubato::sched
