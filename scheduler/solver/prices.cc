#include "scheduler/solver/prices.h"

#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rubato::sched {
namespace {

using ByType = Table<TypeIndex, Gpus>;

// A price only steers, so a double will do.
double surplus_at(const SizeValue& size, double price) {
  return static_cast<double>(size.value) - price * static_cast<double>(size.gpus);
}

// Whether b lies on or below the line from a to c.
bool is_below(const SizeValue& a, const SizeValue& b, const SizeValue& c) {
  __extension__ using Wide = __int128;
  return Wide{b.value - a.value} * (c.gpus - a.gpus) <= Wide{c.value - a.value} * (b.gpus - a.gpus);
}

// Of the least concave function above nothing for nothing and the sizes of a job.
struct Corner {
  SizeValue size;
  double slope;  // value a GPU beyond the corner before
};

// What a job would take of one type at a price: one of its corners, at any price.
struct Offer {
  JobIndex job;
  std::size_t first = 0;  // of its corners
  std::size_t last = 0;
  double before = 0;  // what types that come earlier in the job's list are worth to it, at least 0
  double after = 0;   // … and those later: on equal terms it prefers this one to them
  double extra = 0;   // what the limits of its queue add to the price of the type
};

// The least price at which `count` takers together want no more than there is; but for the last
// 2^-halvings of the range up to `high`, at which nobody wants any. Who takes the same at both ends
// of what is left of the range is not asked again.
template <class TakenBy>
std::int64_t least_price(std::size_t count, const TakenBy& taken_by, Gpus most, std::int64_t high,
                         int halvings) {
  struct Taker {
    std::size_t which;
    Gpus at_low;  // at the low end of the range, and below it
    Gpus at_high;
    Gpus now;
  };
  std::int64_t low = 0;
  Gpus wanted_free = 0;
  std::vector<Taker> takers;
  takers.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Gpus all = taken_by(i, 0);
    if (all > 0) takers.push_back({i, all, 0, 0});
    wanted_free += all;
  }
  if (wanted_free <= most) return 0;
  Gpus settled = 0;
  for (int i = 0; i < halvings && low < high; ++i) {
    const std::int64_t price = low + (high - low) / 2;
    Gpus wanted = settled;
    for (Taker& taker : takers)
      wanted += taker.now = taken_by(taker.which, static_cast<double>(price));
    const bool is_cheap = wanted > most;
    is_cheap ? low = price + 1 : high = price;
    std::erase_if(takers, [&](Taker& taker) {
      (is_cheap ? taker.at_low : taker.at_high) = taker.now;
      if (taker.at_low != taker.at_high) return false;
      settled += taker.now;
      return true;
    });
  }
  return high;
}

class Offers {
 public:
  // `most`: of a job and a type, the GPUs that it can have at all.
  template <class Most>
  Offers(const ValueTable& values, const ByType& capacity, const Most& most)
      : of_type_(capacity.size()), of_job_(values.size()), highest_(capacity.size(), 0) {
    for (JobIndex j; j < values.end_key(); ++j) {
      of_job_[j].reserve(values[j].types.size());
      for (const auto& one : values[j].types) {
        const JobValues::List& list = values[j].of(one);
        for (const auto& [gpus, value] : list)
          highest_[one.type] = std::max(highest_[one.type], value / gpus + 1);
        const std::size_t first = corners_.size();
        add_corners(list, most(j, one.type), first);
        of_job_[j].push_back({one.type, of_type_[one.type].size()});
        of_type_[one.type].push_back({.job = j, .first = first, .last = corners_.size()});
      }
    }
  }

  // While the prices of the other types are as they are now.
  std::int64_t price_of(TypeIndex type, Gpus capacity, const PriceTable& prices, int halvings) {
    std::vector<Offer>& offers = of_type_[type];
    for (Offer& offer : offers) compare_with_others(offer, type, prices);
    return least_price(
        offers.size(), [&](std::size_t i, double price) { return taken(offers[i], price); },
        capacity, highest_[type], halvings);
  }

  // While the other prices are as they are now. `jobs`: of its queue.
  std::int64_t price_of(const QueueLimit& limit, const std::vector<JobIndex>& jobs,
                        const PriceTable& prices, int halvings) const {
    std::int64_t high = 0;
    for (TypeIndex type; type < highest_.end_key(); ++type) high = std::max(high, highest_[type]);
    return least_price(
        jobs.size(),
        [&](std::size_t i, double price) { return taken(jobs[i], limit, price, prices); },
        limit.most, high, halvings);
  }

  // A limit costs jobs so much more.
  void add_extra(const QueueLimit& limit, const std::vector<JobIndex>& jobs, std::int64_t more) {
    for (const JobIndex job : jobs)
      for (const auto& [type, at] : of_job_[job])
        if (!limit.type || limit.type == type)
          of_type_[type][at].extra += static_cast<double>(more);
  }

 private:
  struct Place {
    TypeIndex type;
    std::size_t at;  // in of_type_
  };

  void compare_with_others(Offer& offer, TypeIndex type, const PriceTable& prices) const {
    offer.before = offer.after = 0;
    double* worth = &offer.before;
    for (const auto& [other, at] : of_job_[offer.job]) {
      if (other == type)
        worth = &offer.after;
      else
        *worth = std::max(*worth, most_at(of_type_[other][at], static_cast<double>(prices[other])));
    }
  }

  Gpus taken(const Offer& offer, double price) const {
    const Corner* best = best_at(offer, price);
    if (best == nullptr) return 0;
    const double most = surplus_at(best->size, price + offer.extra);
    return most > offer.before && most >= offer.after ? best->size.gpus : 0;
  }

  // Of what a limit counts, where its GPUs cost so much more.
  Gpus taken(JobIndex job, const QueueLimit& limit, double more, const PriceTable& prices) const {
    Gpus gpus = 0;
    double most = 0;
    for (const auto& [type, at] : of_job_[job]) {
      const bool counts = !limit.type || limit.type == type;
      const double price = static_cast<double>(prices[type]) + (counts ? more : 0);
      const Offer& offer = of_type_[type][at];
      const Corner* best = best_at(offer, price);
      if (best == nullptr) continue;
      const double surplus = surplus_at(best->size, price + offer.extra);
      if (surplus <= most) continue;
      most = surplus;
      gpus = counts ? best->size.gpus : 0;
    }
    return gpus;
  }

  // The last corner that is worth more than its GPUs cost; null: none is.
  const Corner* best_at(const Offer& offer, double price) const {
    const Corner* const first = corners_.data() + offer.first;
    const Corner* const end = std::partition_point(
        first, corners_.data() + offer.last,
        [cost = price + offer.extra](const Corner& corner) { return corner.slope > cost; });
    return end == first ? nullptr : end - 1;
  }

  double most_at(const Offer& offer, double price) const {
    const Corner* best = best_at(offer, price);
    return best == nullptr ? 0 : surplus_at(best->size, price + offer.extra);
  }

  void add_corners(const JobValues::List& list, Gpus most, std::size_t first) {
    for (const SizeValue& size : list) {
      if (size.gpus > most) break;
      while (
          corners_.size() > first &&
          is_below(corners_.size() - first > 1 ? corners_[corners_.size() - 2].size : SizeValue{},
                   corners_.back().size, size))
        corners_.pop_back();
      const SizeValue before = corners_.size() > first ? corners_.back().size : SizeValue{};
      if (size.value > before.value)
        corners_.push_back({size, static_cast<double>(size.value - before.value) /
                                      static_cast<double>(size.gpus - before.gpus)});
    }
  }

  std::vector<Corner> corners_;
  Table<TypeIndex, std::vector<Offer>> of_type_;
  Table<JobIndex, std::vector<Place>> of_job_;  // in the order of its list
  Table<TypeIndex, std::int64_t> highest_;      // a price at which nobody wants any
};

using JobsOfQueue = Table<QueueIndex, std::vector<JobIndex>>;

void price_types(Offers& offers, const ByType& capacity, int halvings, PriceTable& prices) {
  for (TypeIndex type; type < prices.end_key(); ++type)
    prices[type] = offers.price_of(type, capacity[type], prices, halvings);
}

void price_limits(Offers& offers, const std::vector<QueueLimit>& limits, const JobsOfQueue& jobs,
                  int halvings, LimitedPrices& prices) {
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const std::vector<JobIndex>& own = jobs[limits[i].queue];
    offers.add_extra(limits[i], own, -prices.limits[i]);
    prices.limits[i] = offers.price_of(limits[i], own, prices.types, halvings);
    offers.add_extra(limits[i], own, prices.limits[i]);
  }
}

}  // namespace

Choice best_choice(const JobValues& job, const PriceTable& prices, const ByType& capacity) {
  Choice best;
  double most = 0;
  for (const auto& one : job.types) {
    const auto price = static_cast<double>(prices[one.type]);
    for (const SizeValue& size : job.of(one)) {
      if (size.gpus > capacity[one.type]) break;
      const double surplus = surplus_at(size, price);
      if (surplus <= most) continue;
      most = surplus;
      best = {&one, size};
    }
  }
  return best;
}

PriceTable find_prices(const ValueTable& values, const ByType& capacity, int passes, int halvings) {
  PriceTable prices(capacity.size(), 0);
  Offers offers(values, capacity, [&](JobIndex, TypeIndex type) { return capacity[type]; });
  for (int pass = 0; pass < passes; ++pass) {
    const PriceTable before = prices;
    price_types(offers, capacity, halvings, prices);
    if (prices == before || prices.size() == 1) break;
  }
  return prices;
}

std::vector<QueueLimit> limits_of(const Problem& problem) {
  QuotaBook quotas(problem);
  bool any_bounded = false;
  for (QueueIndex q; q.value < problem.count_queues(); ++q)
    any_bounded |= problem.queue(q) != nullptr && quotas.is_bounded(q);
  if (!any_bounded) return {};
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    for (std::size_t i = 0; i < problem.job(j).held.size(); ++i)
      quotas.take(problem.queue_of(j), problem.held_at(j)[i].type, problem.job(j).held[i].gpus);
  std::vector<QueueLimit> limits;
  for (QueueIndex q; q.value < problem.count_queues(); ++q) {
    if (problem.queue(q) == nullptr || !quotas.is_bounded(q)) continue;
    const Gpus most = quotas.own_most(q);
    if (most != kNoLimit) limits.push_back({q, std::nullopt, std::max(most, quotas.used(q))});
    for (TypeIndex t; t.value < problem.count_types(); ++t)
      if (const Gpus of_type = quotas.own_most(q, t); of_type < most)
        limits.push_back({q, t, std::max(of_type, quotas.used(q, t))});
  }
  return limits;
}

LimitedPrices find_prices(const Problem& problem, const ValueTable& values, const ByType& capacity,
                          const std::vector<QueueLimit>& limits, First first, int passes,
                          int halvings) {
  JobsOfQueue jobs(problem.count_queues());
  for (JobIndex j; j < values.end_key(); ++j)
    for (std::optional<QueueIndex> q = problem.queue_of(j); q; q = problem.parent_of(*q))
      jobs[*q].push_back(j);
  Table<QueueIndex, std::vector<const QueueLimit*>> of_queue(problem.count_queues());
  for (const QueueLimit& limit : limits) of_queue[limit.queue].push_back(&limit);
  Offers offers(values, capacity, [&](JobIndex j, TypeIndex type) {
    Gpus most = capacity[type];
    for (std::optional<QueueIndex> q = problem.queue_of(j); q; q = problem.parent_of(*q))
      for (const QueueLimit* limit : of_queue[*q])
        if (!limit->type || limit->type == type)
          most = std::min(most, std::max(limit->most, effective_gpus(problem.job(j))));
    return most;
  });
  LimitedPrices prices{PriceTable(capacity.size(), 0), std::vector<std::int64_t>(limits.size(), 0)};
  for (int pass = 0; pass < passes; ++pass) {
    const LimitedPrices before = prices;
    if (first == First::kTypes) price_types(offers, capacity, halvings, prices.types);
    price_limits(offers, limits, jobs, halvings, prices);
    if (first == First::kLimits) price_types(offers, capacity, halvings, prices.types);
    if (prices == before) break;
  }
  return prices;
}

}  // namespace rubato::sched
