#include "scheduler/policy/marginal_throughput.h"

#include "scheduler/policy/order.h"

namespace rubato::sched {

Descriptor MarginalThroughput::describe() {
  return {.name = "marginalThroughput",
          .about = "priority, then age; what is left over to whoever gains most throughput",
          .rule =
              "Jobs are served by priority, then by age. A job of higher priority may take the "
              "surplus of elastic jobs, and preempt jobs of lower priority.",
          .choose =
              "Where priorities say what matters, jobs are elastic, and none is to be stopped for "
              "another of equal priority: among equals a long job holds its minimum until it ends, "
              "and one with a large minimum may starve behind a stream of small ones.",
          .source = "Rubato; growth by marginal gain as in Optimus (EuroSys'18, 4.1)",
          .elastic = true,
          .uses_throughput = true};
}

Targets MarginalThroughput::decide(const Problem& problem) const {
  return {.order = order_by(problem, [](JobIndex) { return 0; }),
          .displaces = Displaces::kLowerPriority};
}

}  // namespace rubato::sched
