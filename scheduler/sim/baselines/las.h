// Least attained service first: GPU time held so far, preempts, a round every round interval. Jobs
// of equal service take turns, each change paid with a restart: that is what the rule costs without
// Tiresias' queues. A job keeps its GPUs for at least a quantum, else jobs whose starts take longer
// than the time between two events would never train.
#pragma once

#include "scheduler/sim/baselines/ordered.h"

namespace rubato::sched::sim {

class Las : public Scheduler {
 public:
  explicit Las(TimeMs quantum_ms = 60'000) : quantum_ms_(quantum_ms) {}
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;
  std::optional<TimeMs> next_wake(const ClusterState& state, const Hints& hints) const override;

 private:
  bool is_in_quantum(const Job& job, const JobHint& hint, TimeMs now) const;
  const TimeMs quantum_ms_;
  const Descriptor about_{
      .name = "las",
      .about = "least GPU time attained first, preempts after a quantum of 60 s",
      .timed = true};
};

}  // namespace rubato::sched::sim
