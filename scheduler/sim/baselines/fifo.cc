#include "scheduler/sim/baselines/fifo.h"

namespace rubato::sched::sim {

Fifo::Fifo(bool backfills)
    : about_{.name = backfills ? "fifoBackfill" : "fifo",
             .about = backfills ? "arrival order; whoever fits passes one that does not"
                                : "arrival order; the first that does not fit holds up the rest"},
      backfills_(backfills) {}

Plan Fifo::decide(const ClusterState& state, const Hints& hints) {
  const auto order = order_by(state, hints, [](std::size_t) { return 0; });
  return plan_in_order(state, hints, order, {.preempts = false, .skips = backfills_});
}

}  // namespace rubato::sched::sim
