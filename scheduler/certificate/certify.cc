// The search for prices. What it finds may be poor, never wrong: check() has the last word.
#include "scheduler/certificate/certificate.h"
#include "scheduler/model/quota.h"
#include "scheduler/solver/prices.h"

#include <vector>

namespace rubato::sched {
namespace {

constexpr int kPasses = 8;
constexpr int kHalvings = 40;

Prices named(const Problem& problem, const std::vector<QueueLimit>& limits,
             const LimitedPrices& found) {
  Prices prices;
  for (TypeIndex type; type < found.types.end_key(); ++type)
    if (found.types[type] > 0) prices.types.emplace(problem.name(type), found.types[type]);
  for (std::size_t i = 0; i < limits.size(); ++i)
    if (found.limits[i] > 0)
      prices.limits[problem.queue(limits[i].queue)->name]
                   [limits[i].type ? problem.name(*limits[i].type) : QuotaBook::kAllTypes] =
          found.limits[i];
  return prices;
}

}  // namespace

Certificate certify(const Problem& problem, const ValueTable& values, const Plan& plan) {
  Table<TypeIndex, Gpus> capacity(problem.count_types(), 0);
  for (const auto& [type, gpus] : capacity_of(problem.state()))
    capacity[problem.type_named(type)] = gpus;
  const std::vector<QueueLimit> limits = limits_of(problem);
  const auto at = [&](First first) {
    return check(problem, values, plan,
                 named(problem, limits,
                       find_prices(problem, values, capacity, limits, first, kPasses, kHalvings)));
  };
  Certificate best = at(First::kTypes);
  if (limits.empty()) return best;
  const Certificate other = at(First::kLimits);
  return other.bound < best.bound ? other : best;
}

}  // namespace rubato::sched
