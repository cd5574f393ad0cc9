#include "scheduler/policy/fifo.h"

#include "scheduler/policy/order.h"

namespace rubato::sched {
namespace {

Targets by_arrival(const Problem& problem, bool head_blocks) {
  return {.order = order_by(problem, [](JobIndex) { return 0; }),
          .displaces = Displaces::kNobody,
          .head_blocks = head_blocks};
}

}  // namespace

Descriptor Fifo::describe() {
  return {.name = "fifo",
          .about = "arrival order; the first that does not fit holds up the rest",
          .rule =
              "Jobs of one priority are served in order of arrival. The first that does not fit "
              "holds up all behind it. It preempts nobody.",
          .choose =
              "Where a large job must not be passed by small ones, at the price of idle GPUs "
              "while it waits.",
          .source = "classical"};
}

Targets Fifo::decide(const Problem& problem) const { return by_arrival(problem, true); }

Descriptor FifoBackfill::describe() {
  return {.name = "fifoBackfill",
          .about = "arrival order; whoever fits passes one that does not",
          .rule =
              "Jobs of one priority are served in order of arrival; one that does not fit is "
              "passed over, without a reservation. It preempts nobody.",
          .choose = "Where all GPUs should work and large jobs are rare. They may starve.",
          .source = "classical"};
}

Targets FifoBackfill::decide(const Problem& problem) const { return by_arrival(problem, false); }

}  // namespace rubato::sched
