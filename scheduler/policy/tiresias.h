// Tiresias, discretised 2D-LAS (Gu et al., NSDI'19): attained service is GPUs times time; a job
// that has attained queue k's limit falls to queue k + 1. Lower queues go first; inside one, those
// that run before those that wait, then by the time of their last start, or of their arrival. Who
// does not fit is passed over; later ones are displaced. Event-driven: it is asked again at the
// instant of the next demotion.
//
// Limits: 3 250 and 7 200 GPU-seconds, three queues, as the authors' simulator sets them. Promotion
// of starved jobs (PROMOTEKNOB) is off, as it is there by default. The Gittins index is not in
// here.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Tiresias : public Policy {
 public:
  static Descriptor describe();
  explicit Tiresias(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 private:
  std::size_t queue_of(GpuMs attained) const;
  std::vector<GpuMs> limits_;  // rising
};

}  // namespace rubato::sched
