#include "scheduler/perf/roofline.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

constexpr double kTimeLeast = 0.1;  // of the nearest point, where a line would fall below

bool is_in_order(const LayerTimes& times) {
  for (std::size_t i = 0; i < times.size(); ++i) {
    const LayerTime& one = times[i];
    if (!std::isfinite(one.micro_batch) || !std::isfinite(one.seconds) || one.seconds <= 0 ||
        one.micro_batch <= (i > 0 ? times[i - 1].micro_batch : 0))
      return false;
  }
  return !times.empty();
}

}  // namespace

double interpolated(const LayerTimes& times, double micro_batch) {
  if (times.size() == 1) return times.front().seconds;
  std::size_t after = 1;
  while (after + 1 < times.size() && times[after].micro_batch < micro_batch) ++after;
  const LayerTime& a = times[after - 1];
  const LayerTime& b = times[after];
  const double part = (micro_batch - a.micro_batch) / (b.micro_batch - a.micro_batch);
  const double nearest = part < 0.5 ? a.seconds : b.seconds;
  return std::max(a.seconds + part * (b.seconds - a.seconds), kTimeLeast * nearest);
}

Result<PassTimes> PassTimes::scaled(const LayerTimes& measured, std::size_t repeated,
                                    std::vector<std::vector<LayerTimes>> known) {
  if (measured.size() != 2 || !is_in_order(measured))
    return Error(Code::kInvalid, "expected two times above 0, the smaller micro-batch first");
  if (known.empty() || repeated >= known.front().size())
    return Error(Code::kInvalid, "expected a known type that has the measured layer");
  for (const std::vector<LayerTimes>& layers : known)
    if (layers.size() != known.front().size() ||
        !std::all_of(layers.begin(), layers.end(), is_in_order))
      return Error(Code::kInvalid,
                   "expected the same layers on each known type, with times above 0");
  return PassTimes(measured, repeated, std::move(known));
}

double PassTimes::layer_s(std::size_t layer, double micro_batch) const {
  std::vector<double> ratios;
  ratios.reserve(known_.size());
  for (const std::vector<LayerTimes>& layers : known_)
    ratios.push_back(interpolated(layers[layer], micro_batch) /
                     interpolated(layers[repeated_], micro_batch));
  std::sort(ratios.begin(), ratios.end());
  const double median = (ratios[(ratios.size() - 1) / 2] + ratios[ratios.size() / 2]) / 2;
  return median * interpolated(measured_, micro_batch);
}

double PassTimes::pass_s(double micro_batch) const {
  double sum = 0;
  for (std::size_t layer = 0; layer < known_.front().size(); ++layer)
    sum += layer_s(layer, micro_batch);
  return sum;
}

}  // namespace rubato::sched
