// The search for prices. What it finds may be poor, never wrong: check() has the last word.
#include "scheduler/certificate/certificate.h"
#include "scheduler/model/quota.h"
#include "scheduler/solver/prices.h"

#include <algorithm>
#include <vector>

namespace rubato::sched {
namespace {

constexpr int kPasses = 8;
constexpr int kHalvings = 40;

// What a queue holds already it may keep.
std::vector<QueueLimit> limits_of(const Problem& problem) {
  QuotaBook quotas(problem);
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    for (std::size_t i = 0; i < problem.job(j).held.size(); ++i)
      quotas.take(problem.queue_of(j), problem.held_at(j)[i].type, problem.job(j).held[i].gpus);
  std::vector<QueueLimit> limits;
  for (QueueIndex q; q.value < problem.count_queues(); ++q) {
    if (problem.queue(q) == nullptr || !quotas.is_bounded(q)) continue;
    const Gpus most = quotas.most(q);
    if (most != kNoLimit) limits.push_back({q, std::nullopt, std::max(most, quotas.used(q))});
    for (TypeIndex t; t.value < problem.count_types(); ++t)
      if (const Gpus of_type = quotas.most(q, t); of_type < most)
        limits.push_back({q, t, std::max(of_type, quotas.used(q, t))});
  }
  return limits;
}

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
