// What the models of speed are worth on measured data, of which parts are held out: shared by the
// tables of perf_bench.
#pragma once

#include "common/rng.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

namespace rubato::sched {

// What is held out is drawn by the first three seeds; how much hangs on the draw is told by many.
constexpr std::uint64_t kFewSeeds = 3;
constexpr std::uint64_t kManySeeds = 33;
constexpr double kHeldShare = 0.25;

// A quarter of `all`, at least one, drawn by `seed`.
template <class T>
std::set<T> held_out(const std::set<T>& all, std::uint64_t seed) {
  std::vector<T> left(all.begin(), all.end());
  const auto wanted = static_cast<std::size_t>(
      std::max(1.0, std::round(kHeldShare * static_cast<double>(left.size()))));
  Rng rng(seed);
  std::set<T> held;
  while (held.size() < std::min(wanted, left.size())) held.insert(left[rng.below(left.size())]);
  return held;
}

// Of predictions: |predicted - measured| / measured, and how many measurements lie in the band.
class Errors {
 public:
  void add(double predicted, double measured, bool is_within = false) {
    errors_.push_back(std::abs(predicted - measured) / measured);
    within_ += is_within ? 1 : 0;
  }
  std::size_t size() const { return errors_.size(); }
  double mean() const {
    double sum = 0;
    for (const double one : errors_) sum += one;
    return sum / static_cast<double>(errors_.size());
  }
  double percentile(double part) const {
    std::vector<double> sorted = errors_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size()))) -
                  1];
  }
  double within() const { return within_ / static_cast<double>(errors_.size()); }

 private:
  std::vector<double> errors_;
  double within_ = 0;
};

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Of a table's cell.
inline const char* verdict(double value, double least, double most) {
  return value >= least && value <= most ? "met" : "**missed**";
}

}  // namespace rubato::sched
