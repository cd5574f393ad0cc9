// What policies share under which jobs take turns: who has got GPUs keeps them for a quantum.
#pragma once

#include "scheduler/model/sizes.h"

#include <algorithm>
#include <optional>

namespace rubato::sched {

inline bool is_in_quantum(const Job& job, TimeMs now_ms, TimeMs quantum_ms) {
  return effective_gpus(job) > 0 && now_ms < job.allocated_ms + quantum_ms;
}

// When the first quantum ends; none: nobody is in one.
inline std::optional<TimeMs> end_of_first_quantum(const ClusterState& state, TimeMs quantum_ms) {
  std::optional<TimeMs> first;
  for (const Job& job : state.jobs) {
    if (!is_in_quantum(job, state.now_ms, quantum_ms)) continue;
    const TimeMs end = job.allocated_ms + quantum_ms;
    first = std::min(first.value_or(end), end);
  }
  return first;
}

}  // namespace rubato::sched
