#include "scheduler/policy/tiresias.h"

#include "scheduler/model/sizes.h"
#include "scheduler/policy/order.h"

#include <cmath>
#include <tuple>

namespace rubato::sched {

Descriptor Tiresias::describe() {
  return {
      .name = "tiresias",
      .about = "2D-LAS in three queues by GPU time attained, first in first out in each, preempts",
      .rule =
          "A job begins in the first queue and falls to the next when it has had so much GPU "
          "time. Lower queues go first; inside one, those that run before those that wait, "
          "then the one that started or came first. Later jobs are preempted.",
      .choose =
          "Where nothing is known of durations and most jobs are short: they end before "
          "long ones are served again. Large ones may starve behind a stream of small ones.",
      .source =
          "Gu et al., NSDI'19; limits as in the authors' simulator. On Pollux's workloads, with "
          "the two queues of Pollux's artifact, mean completion times are 1 to 5 % below those "
          "that it reports (benchmarks.md)",
      .parameters = {{.name = "firstLimitGpuSeconds",
                      .least = 1,
                      .most = 1e9,
                      .standard = 3250,
                      .unit = "GPU-s",
                      .about = "GPU time after which a job leaves the first queue"},
                     {.name = "secondLimitGpuSeconds",
                      .least = 1,
                      .most = 1e9,
                      .standard = 7200,
                      .unit = "GPU-s",
                      .about = "… and the second; not below the first"}}};
}

Tiresias::Tiresias(const std::vector<double>& parameters) {
  for (const double limit : parameters)
    limits_.push_back(
        std::max<GpuMs>(limits_.empty() ? 0 : limits_.back(), std::llround(limit * 1000)));
}

std::size_t Tiresias::queue_of(GpuMs attained) const {
  return static_cast<std::size_t>(std::upper_bound(limits_.begin(), limits_.end(), attained) -
                                  limits_.begin());
}

Targets Tiresias::decide(const Problem& problem) const {
  return {.order = order_by(problem,
                            [&](JobIndex j) {
                              const Job& job = problem.job(j);
                              const bool waits = effective_gpus(job) == 0;
                              return std::tuple(queue_of(job.attained_gpu_ms), waits,
                                                waits ? 0 : job.allocated_ms);
                            }),
          .displaces = Displaces::kLaterInOrder};
}

std::optional<TimeMs> Tiresias::next_wake(const ClusterState& state) const {
  std::optional<TimeMs> next;
  for (const Job& job : state.jobs) {
    const Gpus gpus = effective_gpus(job);
    const std::size_t queue = queue_of(job.attained_gpu_ms);
    if (gpus == 0 || queue == limits_.size()) continue;
    const TimeMs at = state.now_ms + (limits_[queue] - job.attained_gpu_ms + gpus - 1) / gpus;
    if (!next || at < *next) next = at;
  }
  return next;
}

}  // namespace rubato::sched
