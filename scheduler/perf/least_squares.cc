#include "scheduler/perf/least_squares.h"

#include "common/check.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

constexpr double kStepMost = 2;  // of one logarithm in one iteration
constexpr double kDampingFirst = 1e-3;
constexpr double kDampingLeast = 1e-12;
constexpr double kDampingMost = 1e8;
constexpr double kDampingFactor = 4;
constexpr double kRidge = 1e-12;     // where a parameter changes nothing
constexpr double kGainLeast = 1e-9;  // of the objective in one iteration: below it is the end

struct Point {
  Slopes at{};
  std::vector<Residual> residuals;
  std::array<double, kGroupsMax> roots{};
  std::array<double, kGroupsMax> counts{};
  double value = 0;
};

Point point_at(const LeastSquares& problem, const Slopes& at) {
  Point point{.at = at};
  problem.residuals(at, point.residuals);
  std::array<double, kGroupsMax> squares{};
  for (const Residual& one : point.residuals) {
    CHECK(one.group < kGroupsMax);
    squares[one.group] += one.value * one.value;
    ++point.counts[one.group];
  }
  point.value = squares[kPenalty];
  for (std::size_t g = kPenalty + 1; g < kGroupsMax; ++g) {
    if (point.counts[g] == 0) continue;
    point.roots[g] = std::sqrt(squares[g] / point.counts[g] + kRootFloor * kRootFloor);
    point.value += point.roots[g];
  }
  return point;
}

struct Quadratic {
  NormalMatrix matrix;
  Slopes downhill{};
};

Quadratic quadratic_at(const LeastSquares& problem, const Point& point) {
  Quadratic local{.matrix = NormalMatrix(problem.ranges.size())};
  for (const Residual& one : point.residuals) {
    const double weight =
        one.group == kPenalty ? 1 : 0.5 / (point.counts[one.group] * point.roots[one.group]);
    local.matrix.add(one.slopes, weight);
    for (std::size_t i = 0; i < problem.ranges.size(); ++i)
      local.downhill[i] -= weight * one.value * one.slopes[i];
  }
  for (std::size_t i = 0; i < problem.ranges.size(); ++i) {
    const Range& range = problem.ranges[i];
    const bool at_least = point.at[i] <= range.least && local.downhill[i] <= 0;
    const bool at_most = point.at[i] >= range.most && local.downhill[i] >= 0;
    if (!at_least && !at_most) continue;
    local.matrix.drop(i);
    local.downhill[i] = 0;
  }
  return local;
}

std::optional<Slopes> step_from(const LeastSquares& problem, const Point& point,
                                const Quadratic& local, double damping) {
  NormalMatrix damped = local.matrix;
  for (std::size_t i = 0; i < problem.ranges.size(); ++i)
    damped.add_to_diagonal(i, damping * local.matrix.diagonal(i) + kRidge);
  const auto step = damped.solve(local.downhill);
  if (!step) return std::nullopt;
  Slopes to = point.at;
  for (std::size_t i = 0; i < problem.ranges.size(); ++i)
    to[i] = std::clamp(to[i] + std::clamp((*step)[i], -kStepMost, kStepMost),
                       problem.ranges[i].least, problem.ranges[i].most);
  return to;
}

// A lower point; none: there is none that this method finds. Leaves the damping that led there.
std::optional<Point> descend(const LeastSquares& problem, const Point& from, double& damping) {
  const Quadratic local = quadratic_at(problem, from);
  for (; damping <= kDampingMost; damping *= kDampingFactor) {
    const auto to = step_from(problem, from, local, damping);
    if (!to) continue;
    Point point = point_at(problem, *to);
    if (!(point.value < from.value)) continue;
    damping = std::max(kDampingLeast, damping / kDampingFactor);
    return point;
  }
  return std::nullopt;
}

}  // namespace

void NormalMatrix::add(const Slopes& slopes, double weight) {
  for (std::size_t i = 0; i < size_; ++i)
    for (std::size_t j = 0; j < size_; ++j) at_[i][j] += weight * slopes[i] * slopes[j];
}

void NormalMatrix::drop(std::size_t index) {
  for (std::size_t i = 0; i < size_; ++i) at_[index][i] = at_[i][index] = 0;
  at_[index][index] = 1;
}

// Cholesky: this is L L^T.
std::optional<Slopes> NormalMatrix::solve(const Slopes& right) const {
  std::array<Slopes, kParametersMax> lower{};
  Slopes x{};
  for (std::size_t i = 0; i < size_; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = at_[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      if (j < i) {
        lower[i][j] = sum / lower[j][j];
        continue;
      }
      if (!(sum > 0) || !std::isfinite(sum)) return std::nullopt;
      lower[i][i] = std::sqrt(sum);
    }
    x[i] = right[i];
    for (std::size_t k = 0; k < i; ++k) x[i] -= lower[i][k] * x[k];
    x[i] /= lower[i][i];
  }
  for (std::size_t i = size_; i-- > 0;) {
    for (std::size_t k = i + 1; k < size_; ++k) x[i] -= lower[k][i] * x[k];
    x[i] /= lower[i][i];
  }
  for (std::size_t i = 0; i < size_; ++i)
    if (!std::isfinite(x[i])) return std::nullopt;
  return x;
}

std::optional<Minimum> minimise(const LeastSquares& problem, const Slopes& start) {
  CHECK(problem.ranges.size() <= kParametersMax);
  Slopes at{};
  for (std::size_t i = 0; i < problem.ranges.size(); ++i)
    at[i] = std::clamp(start[i], problem.ranges[i].least, problem.ranges[i].most);
  Point point = point_at(problem, at);
  if (!std::isfinite(point.value)) return std::nullopt;
  double damping = kDampingFirst;
  int iterations = 0;
  while (iterations < kIterationsMax) {
    auto next = descend(problem, point, damping);
    if (!next) break;
    ++iterations;
    const bool is_end = point.value - next->value < kGainLeast * point.value;
    point = std::move(*next);
    if (is_end) break;
  }
  return Minimum{point.at, point.value, iterations};
}

std::optional<Minimum> lowest_of(const LeastSquares& problem, const std::vector<Slopes>& starts) {
  std::optional<Minimum> best;
  for (const Slopes& start : starts) {
    const auto found = minimise(problem, start);
    if (found && (!best || found->value < best->value)) best = found;
  }
  return best;
}

}  // namespace rubato::sched
