#include "scheduler/solver/prices.h"

#include <algorithm>
#include <cstddef>
#include <span>
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
};

class Offers {
 public:
  Offers(const ValueTable& values, const ByType& capacity)
      : of_type_(capacity.size()), of_job_(values.size()), highest_(capacity.size(), 0) {
    for (JobIndex j; j < values.end_key(); ++j) {
      for (const auto& one : values[j].types) {
        const JobValues::List& list = values[j].of(one);
        for (const auto& [gpus, value] : list)
          highest_[one.type] = std::max(highest_[one.type], value / gpus + 1);
        const std::size_t first = corners_.size();
        add_corners(list, capacity[one.type], first);
        of_job_[j].push_back({one.type, of_type_[one.type].size()});
        of_type_[one.type].push_back({.job = j, .first = first, .last = corners_.size()});
      }
    }
  }

  // Prices of the other types are as they are now.
  void compare_with_others(TypeIndex type, const PriceTable& prices) {
    for (Offer& offer : of_type_[type]) {
      offer.before = offer.after = 0;
      double* worth = &offer.before;
      for (const auto& [other, at] : of_job_[offer.job]) {
        if (other == type)
          worth = &offer.after;
        else
          *worth =
              std::max(*worth, most_at(of_type_[other][at], static_cast<double>(prices[other])));
      }
    }
  }

  // The least price at which all jobs together want no more of the type than there is; but for the
  // last 2^-halvings of the range. Who takes the same at both ends of what is left of the range is
  // not asked again.
  std::int64_t price_of(TypeIndex type, Gpus capacity, int halvings) const {
    std::int64_t low = 0;
    std::int64_t high = highest_[type];
    Gpus settled = 0;
    std::vector<Taker> takers;
    takers.reserve(of_type_[type].size());
    for (const Offer& offer : of_type_[type])
      if (const Gpus all = taken(offer, 0); all > 0) takers.push_back({&offer, all, 0, 0});
    for (int i = 0; i < halvings && low < high; ++i) {
      const std::int64_t price = low + (high - low) / 2;
      Gpus wanted = settled;
      for (Taker& taker : takers)
        wanted += taker.now = taken(*taker.offer, static_cast<double>(price));
      const bool is_cheap = wanted > capacity;
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

 private:
  struct Place {
    TypeIndex type;
    std::size_t at;  // in of_type_
  };
  struct Taker {
    const Offer* offer;
    Gpus at_low;  // at the low end of the range, and below it
    Gpus at_high;
    Gpus now;
  };

  Gpus taken(const Offer& offer, double price) const {
    const Corner* best = best_at(offer, price);
    if (best == nullptr) return 0;
    const double most = surplus_at(best->size, price);
    return most > offer.before && most >= offer.after ? best->size.gpus : 0;
  }

  // The last corner that is worth more than its GPUs cost; null: none is.
  const Corner* best_at(const Offer& offer, double price) const {
    const auto corners = std::span(corners_).subspan(offer.first, offer.last - offer.first);
    const auto end = std::ranges::partition_point(
        corners, [&](const Corner& corner) { return corner.slope > price; });
    return end == corners.begin() ? nullptr : &*(end - 1);
  }

  double most_at(const Offer& offer, double price) const {
    const Corner* best = best_at(offer, price);
    return best == nullptr ? 0 : surplus_at(best->size, price);
  }

  void add_corners(const JobValues::List& list, Gpus capacity, std::size_t first) {
    for (const SizeValue& size : list) {
      if (size.gpus > capacity) break;
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
  Offers offers(values, capacity);
  for (int pass = 0; pass < passes; ++pass) {
    const PriceTable before = prices;
    for (TypeIndex type; type < prices.end_key(); ++type) {
      offers.compare_with_others(type, prices);
      prices[type] = offers.price_of(type, capacity[type], halvings);
    }
    if (prices == before || prices.size() == 1) break;
  }
  return prices;
}

}  // namespace rubato::sched
