// The operator's own policy: make_plan, called as the operator calls it (operator/control's
// SchedulerLoop): a round at each event and each round interval, on what jobs declare and on the
// throughputs that were observed where they ran. The parameters are those of a SchedulingPolicy
// that says nothing: at most 100 running jobs grow in a round. The pause between two growths of a
// job and the round interval are the simulation's (SimOptions).
#pragma once

#include "scheduler/sim/scheduler.h"

namespace rubato::sched::sim {

class MarginalThroughput : public Scheduler {
 public:
  explicit MarginalThroughput(PolicyConfig config = {.grown_per_round = 100}) : config_(config) {}
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;

 private:
  const PolicyConfig config_;
  const Descriptor about_{
      .name = "marginalThroughput",
      .about = "the operator's: priority and age, minimums, the rest to who gains most from it",
      .elastic = true,
      .uses_throughput = true};
};

}  // namespace rubato::sched::sim
