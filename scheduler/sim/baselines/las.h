// Least attained service first: GPU time held so far, preempts, a round every round interval. Jobs
// of equal service take turns, each change paid with a restart: that is what the rule costs without
// Tiresias' queues.
#pragma once

#include "scheduler/sim/baselines/ordered.h"

namespace rubato::sched::sim {

class Las : public Scheduler {
 public:
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;

 private:
  const Descriptor about_{
      .name = "las", .about = "least GPU time attained first, preempts each round", .timed = true};
};

}  // namespace rubato::sched::sim
