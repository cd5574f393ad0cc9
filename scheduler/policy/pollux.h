// Pollux (Qiao et al., OSDI'21, section 4.2): sizes by a genetic search for the largest power mean,
// over jobs, of the speedup against a fair share, speed being goodput. A reconstruction:
//
//   value = goodput(size) / goodput(fair share) * (restart factor, if the size changes)
//   restart factor = max(T - N * S, 0) / (T + S): T the job's age, N its restarts, S seconds of
//   each fitness = (sum of weight * (value + 0.001)^p / sum of weight)^(1/p)
//
// The published genome is a matrix of jobs by nodes; here it is a size for each job, and whether it
// stays where it is; who does not is put on as few nodes as hold it (solver/genetic_sizes.h). Where
// some job may not be on all nodes, has pods of several GPUs, or CPU or memory may run out, the
// session chooses the nodes, and nobody moves. GPU types are not told apart: a job stays on the
// type that it holds, or has most room. A population starts from what jobs hold, not from the last
// one; nothing is kept between two decisions. Queues' quotas bound each job's size; what they leave
// to several is the session's business. Of very many sizes (above 64, where there are tens of
// thousands of jobs; above 2048) some in each doubling are tried, and a search that takes too much
// work ends after fewer generations: there is a plan within seconds, whatever the cluster.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Pollux : public Policy {
 public:
  struct Settings {
    double fairness = -1;
    double restart_s = 30;
    int generations = 100;
    std::uint64_t seed = 0;
  };
  static Descriptor describe();
  explicit Pollux(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

 private:
  Settings settings_;
};

}  // namespace rubato::sched
