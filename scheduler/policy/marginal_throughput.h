// Priority, then age: each job its minimum in that order; what is left over goes to whoever gains
// most throughput from it. Displaces lower priority alone.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class MarginalThroughput : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
