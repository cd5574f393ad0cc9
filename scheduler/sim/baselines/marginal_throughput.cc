#include "scheduler/sim/baselines/marginal_throughput.h"

namespace rubato::sched::sim {

Plan MarginalThroughput::decide(const ClusterState& state, const Hints&) {
  return make_plan(state, config_);
}

}  // namespace rubato::sched::sim
