#include "scheduler/policy/qssf.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/predicted_durations.h"

namespace rubato::sched {

Descriptor Qssf::describe() {
  return {.name = "qssf",
          .about = "least predicted GPU time first; the first that does not fit holds up the rest",
          .rule =
              "The job with the least predicted GPU time (duration times the GPUs of its minimum) "
              "goes first. The first that does not fit holds up all behind it, and nobody is "
              "preempted. A duration that is not known is predicted from like jobs that are there: "
              "those of its queue with the same name up to the last \"-\", else those of its queue "
              "with as many GPUs, else all with as many GPUs, else all.",
          .choose =
              "Where nothing may be preempted, jobs come again and again under like names, and "
              "short or small ones should not wait behind long or large ones. Long jobs may "
              "starve. It predicts only from jobs that have not ended.",
          .source =
              "Hu et al., SC'21 (Helios). *Reconstruction*: durations that are known stand for the "
              "output of its predictor, without the gradient-boosted trees; its published results "
              "are *unverified* here",
          .knows = Knows::kDuration};
}

Targets Qssf::decide(const Problem& problem) const {
  const PredictedDurations durations(problem);
  return {.order = order_by(problem,
                            [&](JobIndex j) {
                              const Job& job = problem.job(j);
                              return durations.of(job) * static_cast<double>(job.min);
                            }),
          .displaces = Displaces::kNobody,
          .head_blocks = true};
}

}  // namespace rubato::sched
