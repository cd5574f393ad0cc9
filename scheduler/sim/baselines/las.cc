#include "scheduler/sim/baselines/las.h"

namespace rubato::sched::sim {

Plan Las::decide(const ClusterState& state, const Hints& hints) {
  const auto order =
      order_by(state, hints, [&](std::size_t i) { return hints.jobs[i].attained_gpu_ms; });
  return plan_in_order(state, hints, order, {.preempts = true, .skips = true});
}

}  // namespace rubato::sched::sim
