// Shockwave (Zheng et al., NSDI'23), a reconstruction: a market over a window of rounds
// (shockwave_window.h says what it maximises), planned anew in each round. In this round those run
// that have most of the window, first those who are late; GPUs that are left go to whoever has most
// time left. Jobs have the size of their minimum, and a lease until the round ends.
//
// Its predictor of batch sizes that change while a job trains is left out: here the work left is
// known, or guessed to be as much again as was done. What a job was fairly promised is worked out
// from who is there now, not averaged over the past. O(LP of 7 J columns and 2 J rows).
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Shockwave : public Policy {
 public:
  static Descriptor describe();
  explicit Shockwave(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 private:
  TimeMs round_ms_;
  double rounds_;
  double longest_weight_;
  double rho_;
  double lambda_;
};

}  // namespace rubato::sched
