// Synergy: jobs by arrival; CPU and memory of nodes to whom they make faster.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Synergy : public Policy {
 public:
  static Descriptor describe();
  explicit Synergy(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<CpuMemoryShares> share_cpu_memory(
      const ClusterState& state, const std::vector<GpusOnNodes>& places) const override;

 private:
  double knee_;
};

}  // namespace rubato::sched
