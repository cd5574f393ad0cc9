// How long decisions took: as many as there are, in bounded space. Sum and maximum are exact, and a
// percentile is too low by less than a part in 128.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

namespace rubato::sched::sim {

class DecisionTimes {
 public:
  void add(std::int64_t ns) {
    ns = std::max<std::int64_t>(ns, 0);
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(ns)));
    const int dropped = std::max(bits - kBits, 0);
    ++counts_[ns >> dropped << dropped];
    ++count_;
    total_ns_ += static_cast<double>(ns);
    worst_ns_ = std::max(worst_ns_, ns);
  }
  std::int64_t count() const { return count_; }
  double total_ns() const { return total_ns_; }
  std::int64_t worst_ns() const { return worst_ns_; }
  // That at index floor(share · count) of the sorted ones; 0: there is none.
  std::int64_t percentile_ns(double share) const {
    const auto index = static_cast<std::int64_t>(share * static_cast<double>(count_));
    std::int64_t before = 0;
    for (const auto& [ns, count] : counts_)
      if ((before += count) > index) return ns;
    return worst_ns_;
  }

 private:
  static constexpr int kBits = 8;  // of a time that are kept

  std::map<std::int64_t, std::int64_t> counts_;  // by time, without the bits that are dropped
  std::int64_t count_ = 0;
  double total_ns_ = 0;
  std::int64_t worst_ns_ = 0;
};

}  // namespace rubato::sched::sim
