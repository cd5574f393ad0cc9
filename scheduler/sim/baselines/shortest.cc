#include "scheduler/sim/baselines/shortest.h"

namespace rubato::sched::sim {
namespace {

Descriptor describe(ShortestBy by) {
  switch (by) {
    case ShortestBy::kDuration:
      return {
          .name = "sjf", .about = "shortest job first, no preemption", .knows = Knows::kDuration};
    case ShortestBy::kRemainingTime:
      return {.name = "srtf",
              .about = "shortest remaining time first, preempts",
              .knows = Knows::kRemaining};
    case ShortestBy::kRemainingService:
      return {.name = "srsf",
              .about = "smallest remaining time times GPUs first, preempts",
              .knows = Knows::kRemaining};
  }
  return {};
}

}  // namespace

Shortest::Shortest(ShortestBy by) : about_(describe(by)), by_(by) {}

Plan Shortest::decide(const ClusterState& state, const Hints& hints) {
  const auto order = order_by(state, hints, [&](std::size_t i) -> std::int64_t {
    const JobHint& hint = hints.jobs[i];
    if (by_ == ShortestBy::kDuration) return hint.duration_ms.value_or(0);
    const TimeMs remaining = hint.remaining_ms.value_or(0);
    return by_ == ShortestBy::kRemainingTime ? remaining : remaining * hint.request;
  });
  return plan_in_order(state, hints, order,
                       {.preempts = by_ != ShortestBy::kDuration, .skips = true});
}

}  // namespace rubato::sched::sim
