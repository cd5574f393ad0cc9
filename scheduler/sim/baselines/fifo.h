// FIFO: in order of arrival, no preemption. `fifo` waits with all others behind the first that does
// not fit; `fifoBackfill` lets any later job that fits now pass it (first fit, without a
// reservation: a large job may wait long).
#pragma once

#include "scheduler/sim/baselines/ordered.h"

namespace rubato::sched::sim {

class Fifo : public Scheduler {
 public:
  explicit Fifo(bool backfills);
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;

 private:
  const Descriptor about_;
  const bool backfills_;
};

}  // namespace rubato::sched::sim
