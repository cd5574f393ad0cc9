// Rubick (MLSys'25; "Morphling" in its artifact), a reconstruction. What a job gains from GPUs is
// read from its sensitivity curve: throughput over GPUs, with the best execution plan at each size,
// where a GPU more has to bring kCurveGain at least. The slope of a step is its gain of throughput
// a GPU, over the most that a GPU of it ever brings.
//
// Minimums come first: of guaranteed jobs (those of queues with a guarantee), then of best-effort
// ones; those that run before those that wait, of these the ones that starve, then the one whose
// minimum is steepest. Then GPUs go out, always the steepest step of all jobs, over several sizes
// at once where a plan needs them. So a GPU leaves a flat curve for a steep one; a job that runs
// gives none for that before it has had its GPUs for keepSeconds, for each change costs it time.
// A minimum is given from the surplus of others at any time.
//
// GPUs are counted by type: a job gets the type that it holds, else the one that has most left.
// O(J · S² + K · log J) for J jobs of S sizes and K steps.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Rubick : public Policy {
 public:
  static Descriptor describe();
  explicit Rubick(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr double kCurveGain = 0.01;

 private:
  double starvation_s_;
  double keep_ms_;
};

}  // namespace rubato::sched
