// The search for prices. What it finds may be poor, never wrong: check() has the last word.
#include "scheduler/certificate/certificate.h"
#include "scheduler/solver/prices.h"

namespace rubato::sched {
namespace {

constexpr int kPasses = 8;
constexpr int kHalvings = 40;

}  // namespace

Certificate certify(const Problem& problem, const ValueTable& values, const Plan& plan) {
  Table<TypeIndex, Gpus> capacity(problem.count_types(), 0);
  for (const auto& [type, gpus] : capacity_of(problem.state()))
    capacity[problem.type_named(type)] = gpus;
  const PriceTable found = find_prices(values, capacity, kPasses, kHalvings);
  std::map<std::string, std::int64_t> prices;
  for (TypeIndex type; type < found.end_key(); ++type)
    if (found[type] > 0) prices.emplace(problem.name(type), found[type]);
  return check(problem, values, plan, prices);
}

}  // namespace rubato::sched
