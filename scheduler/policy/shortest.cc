#include "scheduler/policy/shortest.h"

#include "scheduler/policy/order.h"

namespace rubato::sched {

Descriptor Sjf::describe() {
  return {.name = "sjf",
          .about = "shortest job first, no preemption",
          .rule =
              "The job that takes the shortest time at its minimum goes first; one that does "
              "not fit is passed over. A job of unknown duration goes first: it becomes known by "
              "running.",
          .choose =
              "Where short jobs should not wait and nothing may be preempted. Long jobs may "
              "starve.",
          .source = "classical",
          .knows = Knows::kDuration};
}

Targets Sjf::decide(const Problem& problem) const {
  return {.order =
              order_by(problem, [&](JobIndex j) { return problem.job(j).duration_ms.value_or(0); }),
          .displaces = Displaces::kNobody};
}

Descriptor Srtf::describe() {
  return {.name = "srtf",
          .about = "shortest remaining time first, preempts",
          .rule =
              "The job with the least time left at its minimum goes first, and preempts those "
              "with more. A job of unknown speed goes first: it becomes known by running.",
          .choose =
              "Where the mean completion time counts most and stop.steps tells the work. Long "
              "jobs may starve.",
          .source = "classical",
          .knows = Knows::kRemaining};
}

Targets Srtf::decide(const Problem& problem) const {
  return {.order = order_by(problem,
                            [&](JobIndex j) { return problem.job(j).remaining_ms.value_or(0); }),
          .displaces = Displaces::kLaterInOrder};
}

Descriptor Srsf::describe() {
  return {.name = "srsf",
          .about = "smallest remaining time times GPUs first, preempts",
          .rule =
              "The job with the least remaining time, multiplied by the GPUs of its minimum, goes "
              "first, and preempts those with more.",
          .choose = "As srtf, where jobs differ much in size. Long and large jobs may starve.",
          .source = "classical; the oracle variant in Tiresias (NSDI'19)",
          .knows = Knows::kRemaining};
}

Targets Srsf::decide(const Problem& problem) const {
  return {.order = order_by(problem,
                            [&](JobIndex j) {
                              const Job& job = problem.job(j);
                              return static_cast<double>(job.remaining_ms.value_or(0)) *
                                     static_cast<double>(job.min);
                            }),
          .displaces = Displaces::kLaterInOrder};
}

}  // namespace rubato::sched
