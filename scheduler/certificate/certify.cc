// The search for prices. What it finds may be poor, never wrong: check() has the last word.
#include "scheduler/certificate/certificate.h"
#include "scheduler/solver/prices.h"

#include <algorithm>

namespace rubato::sched {
namespace {

constexpr int kPasses = 8;
constexpr int kHalvings = 40;

}  // namespace

Certificate certify(const ClusterState& state, const ValueTable& values, const Plan& plan) {
  const Problem problem(state);
  Table<TypeIndex, Gpus> capacity(problem.count_types(), 0);
  for (const Node& node : state.nodes)
    if (node.schedulable)
      capacity[problem.type_named(node.gpu_type)] += std::max<Gpus>(node.free.gpus, 0);
  for (const Job& job : state.jobs)
    for (const Held& held : job.held)
      if (!held.lost && !held.leaving) capacity[problem.type_named(held.gpu_type)] += held.gpus;
  const PriceTable found = find_prices(values, capacity, kPasses, kHalvings);
  std::map<std::string, std::int64_t> prices;
  for (TypeIndex type; type < found.end_key(); ++type)
    if (found[type] > 0) prices.emplace(problem.name(type), found[type]);
  return check(state, values, plan, prices);
}

}  // namespace rubato::sched
