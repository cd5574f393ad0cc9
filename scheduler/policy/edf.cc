#include "scheduler/policy/edf.h"

#include "scheduler/policy/order.h"

#include <limits>

namespace rubato::sched {

Descriptor Edf::describe() {
  return {
      .name = "edf",
      .about = "earliest deadline first, preempts",
      .rule =
          "The job whose deadline is nearest goes first, and preempts those with later ones. "
          "Jobs without a deadline come last, by age. Nobody is refused because its deadline "
          "cannot be met: in a crowded cluster late jobs make others late.",
      .choose =
          "Where jobs have deadlines (spec.objective.deadline) and the cluster can meet most of "
          "them.",
      .source = "classical: Jackson (1955); Liu and Layland (JACM 1973, section 7)",
      .uses_deadlines = true};
}

Targets Edf::decide(const Problem& problem) const {
  return {.order = order_by(problem,
                            [&](JobIndex j) {
                              return problem.job(j).deadline_ms.value_or(
                                  std::numeric_limits<TimeMs>::max());
                            }),
          .displaces = Displaces::kLaterInOrder};
}

}  // namespace rubato::sched
