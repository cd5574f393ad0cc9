// SiloD: shortest remaining time first; cache and remote bandwidth are shared out with the GPUs.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class SiloD : public Policy {
 public:
  static Descriptor describe();
  Targets decide(const Problem& problem) const override;
  std::optional<StorageShares> share_storage(const ClusterState& state,
                                             const std::vector<Gpus>& gpus) const override;
};

}  // namespace rubato::sched
