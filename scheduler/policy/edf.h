// Earliest deadline first (Jackson 1955, "Scheduling a production line to minimize maximum
// tardiness"; with preemption Liu and Layland, JACM 1973, section 7): the job whose deadline is
// nearest goes first and displaces later ones. On one machine no other order has less lateness at
// worst. Whether a deadline can be met at all is not asked: a job that is late already comes first.
// Jobs without a deadline come last, by age.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Edf : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
};

}  // namespace rubato::sched
