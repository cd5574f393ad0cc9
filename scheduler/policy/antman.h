// AntMan: jobs with guaranteed GPUs, and opportunistic ones on what those leave of their GPUs.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class AntMan : public Policy {
 public:
  static Descriptor describe();
  explicit AntMan(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

 private:
  double busy_below_;
  Bytes memory_below_;
};

}  // namespace rubato::sched
