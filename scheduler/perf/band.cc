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

// What nine in ten of one more and these are below, were they all of one kind.
double ninety_percent_point(std::vector<double> errors) {
  std::sort(errors.begin(), errors.end());
  const auto rank =
      static_cast<std::size_t>(std::ceil(0.9 * static_cast<double>(errors.size() + 1)));
  return errors[std::min(rank, errors.size()) - 1];
}

}  // namespace

Band::Band(const std::vector<Witness>& witnesses, std::size_t parameters, std::size_t fitted,
           std::size_t classes)
    : information_(parameters) {
  const auto count = static_cast<double>(witnesses.size());
  const double freedom = std::max(0.0, count - static_cast<double>(fitted));
  quantile_ = student_quantile(kPriorCount + freedom);
  std::vector<std::vector<double>> errors(classes);
  std::vector<double> squares(classes, 0);
  double all = kPriorCount * kPriorError * kPriorError;
  for (const Witness& one : witnesses) {
    errors[one.of_class].push_back(std::abs(one.error));
    squares[one.of_class] += one.error * one.error;
    all += one.error * one.error;
  }
  const double pooled = all / (kPriorCount + freedom);
  std::vector<double> variances(classes, kUnseenError * kUnseenError);
  for (std::size_t c = 0; c < classes; ++c) {
    const auto own = static_cast<double>(errors[c].size());
    if (own > 0)
      variances[c] = (kPriorCount * pooled + squares[c]) / (kPriorCount + own * freedom / count);
    left_over_.push_back(errors[c].size() < kErrorsForRank || freedom < 1
                             ? quantile_ * std::sqrt(variances[c])
                             : ninety_percent_point(errors[c]) * std::sqrt(count / freedom));
  }
  const double effect = witnesses.empty() ? 1 : design_effect(witnesses, variances, fitted);
  for (const Witness& one : witnesses)
    information_.add(one.slopes, 1 / (effect * variances[one.of_class]));
  for (std::size_t i = 0; i < parameters; ++i)
    information_.add_to_diagonal(i, 1 / (kPriorSlack * kPriorSlack));
}

double Band::half_width(const Slopes& slopes, std::size_t of_class) const {
  double variance = 0;
  if (const auto solved = information_.solve(slopes))
    for (std::size_t i = 0; i < kParametersMax; ++i) variance += slopes[i] * (*solved)[i];
  return std::hypot(left_over_[of_class], quantile_ * std::sqrt(std::max(0.0, variance)));
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
