// Sia (Jayaram Subramanya et al., SOSP'23, section 3): which configuration, GPUs of one type, each
// job should have, by an integer program over all jobs and configurations. A reconstruction:
//
//   G[j][c]   goodput of job j in configuration c, over its least one, times its minimum of GPUs;
//             times the restart factor max(T - N * S, 0) / (T + S) where c is not what it has
//             (T its age, N its restarts, S seconds of each; 1 while T < S)
//   minimise  sum G[j][c]^p * X[j][c] + lambda * (jobs without a configuration)
//   such that a job has one configuration at most, and of each type and for each queue no more GPUs
//             are used than there are
//
// Configurations are powers of two within a node, whole nodes beyond (kWholeNodesMost), the job's
// minimum, and what it has. A type on which a job was not measured is as much faster or slower for
// it, at any size, as at its minimum (perf/type_ratios.h stands for Sia's profiles on one GPU);
// one that was measured nowhere has its minimum alone, all types alike.
//
// The program is solved exactly where it is small, as with 64 GPUs, else to a gap of 10^-4 or by
// kChoiceProgramsMost linear programs (solver/choices.h); of several priorities, that of the
// highest first. Cost, at the median of simulations: 0.5 ms on 64 GPUs of one type, 43 ms on 108 of
// three.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Sia : public Policy {
 public:
  struct Settings {
    double power = -0.5;
    double incentive = 1.1;
    double restart_s = 30;
  };
  static Descriptor describe();
  explicit Sia(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr std::int64_t kWholeNodesMost = 64;  // of one job

 private:
  Settings settings_;
};

}  // namespace rubato::sched
