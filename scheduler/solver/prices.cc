#include "scheduler/solver/prices.h"

#include <algorithm>

namespace rubato::sched {
namespace {

using ByType = Table<TypeIndex, Gpus>;

std::int64_t highest(const ValueTable& values, TypeIndex type) {
  std::int64_t most = 0;
  for (const JobValues& job : values)
    for (const auto& one : job.types)
      if (one.type == type)
        for (const auto& [gpus, value] : job.of(one)) most = std::max(most, value / gpus + 1);
  return most;
}

// GPUs of the type that all jobs together take at these prices.
Gpus wanted(const ValueTable& values, TypeIndex type, const PriceTable& prices,
            const ByType& capacity) {
  Gpus sum = 0;
  for (const JobValues& job : values) {
    const Choice choice = best_choice(job, prices, capacity);
    if (choice.type != nullptr && choice.type->type == type) sum += choice.size.gpus;
  }
  return sum;
}

}  // namespace

Choice best_choice(const JobValues& job, const PriceTable& prices, const ByType& capacity) {
  Choice best;
  double most = 0;  // it only steers: a double will do
  for (const auto& one : job.types) {
    const auto price = static_cast<double>(prices[one.type]);
    for (const SizeValue& size : job.of(one)) {
      if (size.gpus > capacity[one.type]) break;
      const double surplus =
          static_cast<double>(size.value) - price * static_cast<double>(size.gpus);
      if (surplus <= most) continue;
      most = surplus;
      best = {&one, size};
    }
  }
  return best;
}

PriceTable find_prices(const ValueTable& values, const ByType& capacity, int passes, int halvings) {
  PriceTable prices(capacity.size(), 0);
  for (int pass = 0; pass < passes; ++pass) {
    const PriceTable before = prices;
    for (TypeIndex type; type < prices.end_key(); ++type) {
      std::int64_t low = 0;
      std::int64_t high = highest(values, type);
      for (int i = 0; i < halvings && low < high; ++i) {
        prices[type] = low + (high - low) / 2;
        if (wanted(values, type, prices, capacity) > capacity[type])
          low = prices[type] + 1;
        else
          high = prices[type];
      }
      prices[type] = high;
    }
    if (prices == before || prices.size() == 1) break;
  }
  return prices;
}

}  // namespace rubato::sched
