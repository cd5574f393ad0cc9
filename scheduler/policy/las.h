// Least attained service first: GPU time held so far, displaces later ones, a round every round
// interval. Jobs of equal service take turns, each change paid with a restart: that is what the
// rule costs without Tiresias' queues. A job keeps its GPUs for at least a quantum, else jobs whose
// starts take longer than the time between two events would never train.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Las : public Policy {
 public:
  static Descriptor describe();
  explicit Las(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 private:
  TimeMs quantum_ms_;
};

}  // namespace rubato::sched
