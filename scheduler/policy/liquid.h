// Liquid: jobs by arrival; the pods of each that starts on nodes that are near to each other.
#pragma once

#include "scheduler/policy/liquid_places.h"
#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Liquid : public Policy {
 public:
  static Descriptor describe();
  explicit Liquid(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

  static constexpr std::size_t kBatchMost = 64;  // jobs that are placed together

 private:
  LiquidSettings settings_;
};

}  // namespace rubato::sched
