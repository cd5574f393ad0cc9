// Hare (HPDC'22), its online rule, a reconstruction. A job's round of R tasks may run on fewer than
// R GPUs, one after the other, so a job never waits for all of its GPUs at once: it starts with
// what there is, from its minimum on. GPUs differ in speed, and service counts by what it was
// worth:
//
//   service[j] = sum over types m of GPU time attained on m · speed[j][m] / most speed[j]
//
// Who has had least goes first, and takes the type where its own rate is highest with what is left
// there, and nodes have room for without other jobs. Who holds GPUs keeps its type unless another
// one is faster by switchGain, and its turn for a quantum. O(J · M + J log J) for M types.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Hare : public Policy {
 public:
  static Descriptor describe();
  explicit Hare(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 private:
  TimeMs quantum_ms_;
  double switch_gain_;
};

}  // namespace rubato::sched
