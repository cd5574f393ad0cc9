#include "scheduler/perf/type_ratios.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kHope = 1.1;  // above 1, so that a type of which nothing is known is tried

}  // namespace

TypeRatios::TypeRatios(std::size_t types) : means_(types, std::vector<Mean>(types)) {}

void TypeRatios::add(const ByGpuType& measured) {
  for (std::size_t a = 0; a < means_.size(); ++a) {
    for (std::size_t b = 0; b < means_.size(); ++b) {
      if (measured[a] <= 0 || measured[b] <= 0) continue;
      means_[a][b].logs += std::log(measured[a] / measured[b]);
      ++means_[a][b].many;
      means_[a][b].best = std::max(means_[a][b].best, measured[a] / measured[b]);
    }
  }
}

double TypeRatios::ratio(std::size_t of, std::size_t to, Taking taking) const {
  const Mean& mean = means_[of][to];
  if (taking == Taking::kBest) return mean.best;
  return mean.many > 0 ? std::exp(mean.logs / mean.many) : 0;
}

double TypeRatios::guess(const ByGpuType& measured, std::size_t type, Taking taking) const {
  double by_ratio = 0, ratios_known = 0, fastest = 0;
  for (std::size_t other = 0; other < measured.size(); ++other) {
    if (measured[other] <= 0) continue;
    fastest = std::max(fastest, measured[other]);
    const double times = ratio(type, other, taking);
    if (times <= 0) continue;
    by_ratio += measured[other] * times;
    ++ratios_known;
  }
  if (ratios_known > 0) return by_ratio / ratios_known;
  return fastest > 0 ? kHope * fastest : 1;
}

TypeRatios::ByGpuType TypeRatios::speeds_of(ByGpuType measured) const {
  return filled(std::move(measured), Taking::kMean);
}

TypeRatios::ByGpuType TypeRatios::hopes_of(ByGpuType measured) const {
  return filled(std::move(measured), Taking::kBest);
}

TypeRatios::ByGpuType TypeRatios::filled(ByGpuType measured, Taking taking) const {
  const auto is_known = [](double speed) { return speed > 0; };
  for (std::size_t t = 0; std::ranges::none_of(measured, is_known) && t < measured.size(); ++t)
    if (means_[t][t].many > 0) measured[t] = 1;  // and no other
  ByGpuType speeds;
  speeds.reserve(measured.size());
  for (std::size_t t = 0; t < measured.size(); ++t)
    speeds.push_back(measured[t] > 0 ? measured[t] : guess(measured, t, taking));
  return speeds;
}

}  // namespace rubato::sched
