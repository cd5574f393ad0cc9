// Tiresias, discretised 2D-LAS (Gu et al., NSDI'19): attained service is GPUs times time; a job
// that has attained queue k's limit falls to queue k + 1. Lower queues go first; inside one, those
// that run before those that wait, then by the time of their last start, or of their arrival. Who
// does not fit is passed over; who runs and is not chosen is preempted. Event-driven: it is asked
// again at the instant of the next demotion.
//
// Limits: 3 250 and 7 200 GPU-seconds, three queues, as the authors' simulator sets them. Promotion
// of starved jobs (PROMOTEKNOB) is off, as it is there by default. The Gittins index is not in
// here.
#pragma once

#include "scheduler/sim/baselines/ordered.h"

namespace rubato::sched::sim {

class Tiresias : public Scheduler {
 public:
  explicit Tiresias(std::vector<GpuMs> limits = {3'250'000, 7'200'000});
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state, const Hints& hints) override;
  std::optional<TimeMs> next_wake(const ClusterState& state, const Hints& hints) const override;

 private:
  std::size_t queue_of(GpuMs attained) const;
  const std::vector<GpuMs> limits_;  // rising
  const Descriptor about_{
      .name = "tiresias",
      .about = "2D-LAS in three queues (3 250, 7 200 GPU-s), first in first out in each, preempts"};
};

}  // namespace rubato::sched::sim
