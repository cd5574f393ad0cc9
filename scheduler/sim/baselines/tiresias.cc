#include "scheduler/sim/baselines/tiresias.h"

#include "scheduler/policy/sizes.h"

#include <tuple>

namespace rubato::sched::sim {

Tiresias::Tiresias(std::vector<GpuMs> limits) : limits_(std::move(limits)) {}

std::size_t Tiresias::queue_of(GpuMs attained) const {
  return static_cast<std::size_t>(std::upper_bound(limits_.begin(), limits_.end(), attained) -
                                  limits_.begin());
}

Plan Tiresias::decide(const ClusterState& state, const Hints& hints) {
  const auto order = order_by(state, hints, [&](std::size_t i) {
    const JobHint& hint = hints.jobs[i];
    const bool waits = !holds_gpus(state.jobs[i]);
    return std::tuple(queue_of(hint.attained_gpu_ms), waits,
                      waits ? hint.submit_ms : hint.started_ms);
  });
  return plan_in_order(state, hints, order, {.preempts = true, .skips = true});
}

std::optional<TimeMs> Tiresias::next_wake(const ClusterState& state, const Hints& hints) const {
  std::optional<TimeMs> next;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const Gpus gpus = effective_gpus(state.jobs[i]);
    const GpuMs attained = hints.jobs[i].attained_gpu_ms;
    const std::size_t queue = queue_of(attained);
    if (gpus == 0 || queue == limits_.size()) continue;
    const TimeMs at = hints.now_ms + (limits_[queue] - attained + gpus - 1) / gpus;
    if (!next || at < *next) next = at;
  }
  return next;
}

}  // namespace rubato::sched::sim
