#include "scheduler/sim/baselines/las.h"

namespace rubato::sched::sim {

bool Las::is_in_quantum(const Job& job, const JobHint& hint, TimeMs now) const {
  return holds_gpus(job) && now < hint.started_ms + quantum_ms_;
}

Plan Las::decide(const ClusterState& state, const Hints& hints) {
  const auto order = order_by(state, hints, [&](std::size_t i) -> GpuMs {
    const JobHint& hint = hints.jobs[i];
    return is_in_quantum(state.jobs[i], hint, hints.now_ms) ? -1 : hint.attained_gpu_ms;
  });
  return plan_in_order(state, hints, order, {.preempts = true, .skips = true});
}

std::optional<TimeMs> Las::next_wake(const ClusterState& state, const Hints& hints) const {
  std::optional<TimeMs> next;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    if (!is_in_quantum(state.jobs[i], hints.jobs[i], hints.now_ms)) continue;
    const TimeMs end = hints.jobs[i].started_ms + quantum_ms_;
    if (!next || end < *next) next = end;
  }
  return next;
}

}  // namespace rubato::sched::sim
