// Prices of GPUs, by type: such that the sizes that are worth most to jobs at these prices together
// take as many GPUs of each type as there are. That is the minimum of the Lagrangian dual of "the
// greatest value that fits", which is convex in the prices: coordinate descent, each coordinate by
// halving. With one type exact; with several a start that may stop early (a dual without smoothness
// has corners). Whatever is found, it proves a bound: scheduler/certificate.
#pragma once

#include "scheduler/model/value_table.h"

#include <optional>
#include <vector>

namespace rubato::sched {

using PriceTable = Table<TypeIndex, std::int64_t>;  // of one GPU, in units of the values; >= 0

// Cost: at most passes · types · halvings · (entries of the table). `capacity`: GPUs by type.
PriceTable find_prices(const ValueTable& values, const Table<TypeIndex, Gpus>& capacity, int passes,
                       int halvings);

// What the jobs of a queue and of its parts may have together; what they hold already they may
// keep.
struct QueueLimit {
  QueueIndex queue;
  std::optional<TypeIndex> type;  // none: of all types
  Gpus most = 0;
};
struct LimitedPrices {
  PriceTable types;
  std::vector<std::int64_t> limits;  // beside the price of its type, of each GPU of such a job
  bool operator==(const LimitedPrices&) const = default;
};
// All that there are.
std::vector<QueueLimit> limits_of(const Problem& problem);

// Where the search stops depends on what it looks at first.
enum class First { kTypes, kLimits };
// The same where limits of queues bind, too: a price for each of them. Cost: as above, and passes ·
// halvings · (entries of the jobs of each limit).
LimitedPrices find_prices(const Problem& problem, const ValueTable& values,
                          const Table<TypeIndex, Gpus>& capacity,
                          const std::vector<QueueLimit>& limits, First first, int passes,
                          int halvings);

struct Choice {
  const JobValues::OfType* type = nullptr;  // null: nothing is worth its price
  SizeValue size;
};
// What is worth most to a job at these prices, of what fits into the cluster at all.
Choice best_choice(const JobValues& job, const PriceTable& prices,
                   const Table<TypeIndex, Gpus>& capacity);

}  // namespace rubato::sched
