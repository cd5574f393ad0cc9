// Least squares of small models (a dozen parameters) within bounds, by Levenberg and Marquardt's
// method. Pure and deterministic: no clock, no chance; equal input gives equal output.
//
// Parameters are logarithms of positive quantities. Residuals come in groups; what is minimised is
//   sum over groups of sqrt(mean of their squares + kRootFloor^2)  +  sum of squared penalties
// The root of a mean (RMSLE, if residuals are differences of logarithms) is no sum of squares. Each
// iteration weighs a group with 1 / (2 root) at the point where it stands: that sum of squares lies
// above the objective, up to a constant, and touches it, so a step that lowers it lowers the
// objective.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace rubato::sched {

constexpr std::size_t kParametersMax = 16;
constexpr int kIterationsMax = 200;
constexpr double kRootFloor = 1e-5;

// By parameter; what is beyond the number of parameters stays 0.
using Slopes = std::array<double, kParametersMax>;

constexpr std::size_t kPenalty = 0;  // the group whose squares are added as they are
constexpr std::size_t kGroupsMax = 3;

struct Residual {
  double value = 0;
  Slopes slopes{};  // of the value
  std::size_t group = kPenalty;
};

// A symmetric matrix that is a sum of weighted squares of slopes.
class NormalMatrix {
 public:
  explicit NormalMatrix(std::size_t size) : size_(size) {}
  void add(const Slopes& slopes, double weight);
  void add_to_diagonal(std::size_t index, double amount) { at_[index][index] += amount; }
  double diagonal(std::size_t index) const { return at_[index][index]; }
  // Leaves this parameter out: its part of every solution is 0.
  void drop(std::size_t index);
  // None where it is not positive definite, or not finite.
  std::optional<Slopes> solve(const Slopes& right) const;

 private:
  std::size_t size_;
  std::array<Slopes, kParametersMax> at_{};
};

// Equal ends: the parameter is fixed.
struct Range {
  double least = 0;
  double most = 0;
};

struct LeastSquares {
  std::vector<Range> ranges;  // by parameter, at most kParametersMax
  // Appends the residuals at a point within the ranges.
  std::function<void(const Slopes& at, std::vector<Residual>& to)> residuals;
};

struct Minimum {
  Slopes at{};
  double value = 0;
  int iterations = 0;
};

// The lowest point that is found from `start` (moved into the ranges) in kIterationsMax iterations.
// None where the objective is not finite there. Time O(iterations * residuals * parameters^2).
std::optional<Minimum> minimise(const LeastSquares& problem, const Slopes& start);
// The lowest of those from several starts; of equal ones the first.
std::optional<Minimum> lowest_of(const LeastSquares& problem, const std::vector<Slopes>& starts);

}  // namespace rubato::sched
