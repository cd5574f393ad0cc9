// Shortest first, by an oracle's times at the requested size; who does not fit is passed over.
//   sjf   duration, no preemption
//   srtf  remaining time, preempts
//   srsf  remaining time times GPUs (remaining service), preempts
#pragma once

#include "scheduler/sim/baselines/ordered.h"

namespace rubato::sched::sim {

enum class ShortestBy { kDuration, kRemainingTime, kRemainingService };

class Shortest : public Scheduler {
 public:
  explicit Shortest(ShortestBy by);
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;

 private:
  const Descriptor about_;
  const ShortestBy by_;
};

}  // namespace rubato::sched::sim
