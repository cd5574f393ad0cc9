#include "scheduler/perf/band.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace rubato::sched {
namespace {

double design_effect(const std::vector<Witness>& witnesses, const std::vector<double>& variances,
                     std::size_t fitted) {
  std::map<std::size_t, double> sums;  // of errors, by group
  double squares = 0;
  for (const Witness& one : witnesses) {
    const double error = one.error / std::sqrt(variances[one.of_class]);
    sums[one.of_group] += error;
    squares += error * error;
  }
  const auto groups = static_cast<double>(sums.size());
  const double most = std::max(1.0, static_cast<double>(witnesses.size()) / groups);
  double between = 0;
  for (const auto& [group, sum] : sums) between += sum * sum;
  const double seen = squares > 0 ? std::clamp(between / squares, 1.0, most) : most;
  const auto used_up = static_cast<double>(fitted);
  return (groups * seen + used_up * most) / (groups + used_up);
}

}  // namespace

Band::Band(const std::vector<Witness>& witnesses, std::size_t parameters, std::size_t fitted,
           std::size_t classes)
    : information_(parameters), variances_(classes, kUnseenError * kUnseenError) {
  const auto count = static_cast<double>(witnesses.size());
  const double freedom = std::max(0.0, count - static_cast<double>(fitted));
  std::vector<double> squares(classes, 0);
  std::vector<double> counts(classes, 0);
  double all = 0;
  for (const Witness& one : witnesses) {
    squares[one.of_class] += one.error * one.error;
    all += one.error * one.error;
    ++counts[one.of_class];
  }
  const double pooled = (kPriorCount * kPriorError * kPriorError + all) / (kPriorCount + freedom);
  for (std::size_t c = 0; c < classes; ++c) {
    if (counts[c] == 0) continue;
    const double own = counts[c] * freedom / count;
    variances_[c] = (kPriorCount * pooled + squares[c]) / (kPriorCount + own);
  }
  const double effect = witnesses.empty() ? 1 : design_effect(witnesses, variances_, fitted);
  for (const Witness& one : witnesses)
    information_.add(one.slopes, 1 / (effect * variances_[one.of_class]));
  for (std::size_t i = 0; i < parameters; ++i)
    information_.add_to_diagonal(i, 1 / (kPriorSlack * kPriorSlack));
  quantile_ = student_quantile(kPriorCount + freedom);
}

double Band::half_width(const Slopes& slopes, std::size_t of_class) const {
  double variance = variances_[of_class];
  if (const auto solved = information_.solve(slopes))
    for (std::size_t i = 0; i < kParametersMax; ++i) variance += slopes[i] * (*solved)[i];
  return quantile_ * std::sqrt(variance);
}

// Fisher's expansion in 1 / freedom (Abramowitz and Stegun 26.7.5); below 2, where it ends too
// early, the point of 1.
double student_quantile(double freedom) {
  if (freedom < 2) return 6.314;
  const double z = 1.6448536;
  const double z2 = z * z;
  const double first = z * (z2 + 1) / 4;
  const double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
  const double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  return z + (first + (second + third / freedom) / freedom) / freedom;
}

}  // namespace rubato::sched
