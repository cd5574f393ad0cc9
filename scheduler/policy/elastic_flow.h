// ElasticFlow (Gu et al., ASPLOS'23), a reconstruction. Time from now on is cut into slots; a plan
// says how many GPUs a job has in each: its minimum, or a power of two above it.
//
// Admission: a job with a deadline is admitted if all that are admitted, and it, can be given their
// minimum satisfactory share, the nearest deadline first. That share is the smallest size with
// which the job ends in time, where each slot before its deadline has the largest size up to it
// that is free; the earliest slots have the next smaller one, as long as that is enough. Jobs that
// have started are asked first, then the others by age, so that who comes later breaks no promise.
// A job that is not admitted, or has no deadline, or of which the work left is not known, is best
// effort: a scheduler of a cluster does not turn it away, as the paper's does.
//
// Surplus: while GPUs are free now, one step of size goes to the job that saves most GPU time later
// by it, a GPU; a job that has none now comes before those that have some. Later, a best-effort job
// runs at its minimum.
//
// GPUs are counted by type: a job gets the type that it holds, else the one that has most left.
// Time is planned for kSlotsMost slots: beyond them all GPUs count as free for each job until its
// deadline, so that a far deadline makes no slot longer. GPU time counts to the end of the work,
// not of the slot: who saves most does not depend on where in a slot a round comes. O(D² · L · T)
// for D jobs with a deadline (kDeadlinesMost), L sizes and T slots.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class ElasticFlow : public Policy {
 public:
  static Descriptor describe();
  explicit ElasticFlow(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr std::int64_t kSlotsMost = 240;
  static constexpr std::size_t kDeadlinesMost = 512;

 private:
  TimeMs slot_ms_;
};

}  // namespace rubato::sched
