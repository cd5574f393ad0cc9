// Gavel (Narayanan et al., OSDI'20): GPU types differ in speed, and jobs differ in how much. Each
// job's share of each type is the answer of a linear program (gavel_shares.h); in rounds these
// shares become leases (rounds.h). A reconstruction: no packing of two jobs on a GPU, no hierarchy
// of queues (their quotas hold all the same), none of its space of SLOs and costs.
//
// Turns change at the beginning of a round, the same instant for all: in its first sixth, so that
// whoever decides a bit late still does. What a job has received counts up to that instant; until
// the next one it keeps what it holds, and only GPUs that are free are given out, or taken by
// priority class.
//
// A job's speed on a type on which it was not measured is guessed: scheduler/perf/type_ratios.h.
//
// Cost: the program's, by far: some 0.2 s for 1 000 jobs and three types, as the square of jobs.
#pragma once

#include "scheduler/policy/gavel_shares.h"
#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Gavel : public Policy {
 public:
  static Descriptor describe();
  explicit Gavel(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<TimeMs> next_wake(const ClusterState& state) const override;

 protected:
  // parameters: which of the goals, and how long a round is.
  Gavel(const std::vector<ShareGoal>& goals, const std::vector<double>& parameters);

 private:
  ShareGoal goal_;
  TimeMs round_ms_;
};

// Its objectives that look at the work left.
class GavelFinish : public Gavel {
 public:
  static Descriptor describe();
  explicit GavelFinish(const std::vector<double>& parameters);
};

}  // namespace rubato::sched
