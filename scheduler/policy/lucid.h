// Lucid: least predicted GPU time first, nobody preempted, two jobs on the same GPUs where both
// lose little by it.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Lucid : public Policy {
 public:
  static Descriptor describe();
  explicit Lucid(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

 private:
  int sharing_score(const Job& job) const;

  double tiny_from_;
  double medium_from_;
  int score_most_;
  Bytes memory_;
};

}  // namespace rubato::sched
