// What a policy needs of workers and Rubato's cannot do: SchedulingPolicy's spec.missingMechanism
// says what comes of it.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

// For a sentence that says what the policy needs; "": nothing is missing.
inline const char* missing_mechanism(const Descriptor& policy) {
  if (policy.shares != Sharing::kNone)
    return "two jobs on one GPU (sharing), which workers cannot do";
  if (policy.shares_storage)
    return "shares of cache and remote bandwidth, which workers cannot keep to";
  return policy.shares_cpu_memory
             ? "shares of CPU and memory that change, which workers cannot keep to"
             : "";
}

}  // namespace rubato::sched
