#include "scheduler/policy/las.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/turns.h"

#include <cmath>

namespace rubato::sched {

Descriptor Las::describe() {
  return {.name = "las",
          .about = "least GPU time attained first, preempts after a quantum",
          .rule =
              "The job that has had the least GPU time goes first, and preempts those that have "
              "had more once they have held their GPUs for a quantum. Equals take turns.",
          .choose =
              "Where nothing is known of durations and newcomers should get a turn soon; each "
              "turn costs a preemption.",
          .source = "classical; for GPUs in Tiresias (NSDI'19)",
          .parameters = {{.name = "quantumSeconds",
                          .least = 1,
                          .most = 86'400,
                          .standard = 60,
                          .unit = "s",
                          .about = "a job keeps its GPUs for at least so long"}},
          .timed = true};
}

Las::Las(const std::vector<double>& parameters)
    : quantum_ms_(std::llround(parameters.at(0) * 1000)) {}

Targets Las::decide(const Problem& problem) const {
  const TimeMs now = problem.state().now_ms;
  return {.order = order_by(problem,
                            [&](JobIndex j) -> GpuMs {
                              const Job& job = problem.job(j);
                              return is_in_quantum(job, now, quantum_ms_) ? -1
                                                                          : job.attained_gpu_ms;
                            }),
          .displaces = Displaces::kLaterInOrder};
}

std::optional<TimeMs> Las::next_wake(const ClusterState& state) const {
  return end_of_first_quantum(state, quantum_ms_);
}

}  // namespace rubato::sched
