// Gandiva: all jobs take turns; who waits is tried on the GPUs of another job, and stays if both
// together get more done.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Gandiva : public Policy {
 public:
  static Descriptor describe();
  explicit Gandiva(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 private:
  bool is_worth_it(const Job& guest, const Job& host) const;

  TimeMs quantum_ms_;
  double least_gain_;
  Bytes memory_;
};

}  // namespace rubato::sched
