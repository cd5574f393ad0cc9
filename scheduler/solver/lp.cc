#include "scheduler/solver/lp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ClpSimplex.hpp>
#include <CoinError.hpp>
#include <fmt/format.h>

namespace rubato::sched::lp {
namespace {

constexpr int kSilent = 0;
constexpr int kNoPerturbation = 100;  // in Clp's words; it costs steps and changes the vertex

// By column, as Clp takes it.
struct Matrix {
  std::vector<CoinBigIndex> starts;
  std::vector<int> rows;
  std::vector<double> factors;
};

Matrix by_column(const Program& program) {
  Matrix matrix;
  matrix.starts.assign(program.columns.size() + 1, 0);
  for (const Row& row : program.rows)
    for (const Term& term : row.terms) ++matrix.starts[term.column + 1];
  for (std::size_t c = 0; c < program.columns.size(); ++c) matrix.starts[c + 1] += matrix.starts[c];
  std::vector<CoinBigIndex> next = matrix.starts;
  matrix.rows.resize(static_cast<std::size_t>(matrix.starts.back()));
  matrix.factors.resize(matrix.rows.size());
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    for (const Term& term : program.rows[r].terms) {
      const auto at = static_cast<std::size_t>(next[term.column]++);
      matrix.rows[at] = static_cast<int>(r);
      matrix.factors[at] = term.factor;
    }
  }
  return matrix;
}

double for_clp(double bound) {
  if (std::isfinite(bound)) return bound;
  return bound > 0 ? COIN_DBL_MAX : -COIN_DBL_MAX;
}

template <class Bounded>
std::pair<std::vector<double>, std::vector<double>> bounds_of(const std::vector<Bounded>& all) {
  std::pair<std::vector<double>, std::vector<double>> bounds;
  for (const Bounded& one : all) {
    bounds.first.push_back(for_clp(one.bounds.least));
    bounds.second.push_back(for_clp(one.bounds.most));
  }
  return bounds;
}

Status check(const Bounds& bounds, const char* what, std::size_t index) {
  if (bounds.least <= bounds.most) return ok();  // NaN is not
  return Error(Code::kInvalid,
               fmt::format("{} {} is to be from {} to {}", what, index, bounds.least, bounds.most));
}

Status check(const Program& program) {
  for (std::size_t c = 0; c < program.columns.size(); ++c) {
    TRY_OK(check(program.columns[c].bounds, "column", c));
    if (!std::isfinite(program.columns[c].cost))
      return Error(Code::kInvalid, fmt::format("column {} has no finite cost", c));
  }
  std::vector<std::size_t> row_of(program.columns.size(), program.rows.size());
  for (std::size_t r = 0; r < program.rows.size(); ++r) {
    TRY_OK(check(program.rows[r].bounds, "row", r));
    for (const Term& term : program.rows[r].terms) {
      if (term.column >= row_of.size() || row_of[term.column] == r)
        return Error(Code::kInvalid, fmt::format("row {} names column {}, which is none, or twice",
                                                 r, term.column));
      if (!std::isfinite(term.factor))
        return Error(Code::kInvalid,
                     fmt::format("column {} has no finite factor in row {}", term.column, r));
      row_of[term.column] = r;
    }
  }
  return ok();
}

Solution read(const Program& program, const ClpSimplex& clp) {
  Solution solution;
  for (std::size_t c = 0; c < program.columns.size(); ++c) {
    const auto& [least, most] = program.columns[c].bounds;
    const double value = std::clamp(clp.getColSolution()[c], least, most);
    solution.values.push_back(value);
    solution.objective += program.columns[c].cost * value;
  }
  const double* prices = clp.getRowPrice();
  solution.prices.assign(prices, prices + program.rows.size());
  return solution;
}

Result<Solution> run(const Program& program, int steps_most) {
  const auto [column_least, column_most] = bounds_of(program.columns);
  const auto [row_least, row_most] = bounds_of(program.rows);
  std::vector<double> costs;
  costs.reserve(program.columns.size());
  for (const Column& column : program.columns) costs.push_back(column.cost);
  const Matrix matrix = by_column(program);
  ClpSimplex clp;
  clp.setLogLevel(kSilent);
  clp.setPerturbation(kNoPerturbation);
  clp.setMaximumIterations(steps_most);
  clp.setOptimizationDirection(program.maximise ? -1 : 1);
  clp.loadProblem(static_cast<int>(program.columns.size()), static_cast<int>(program.rows.size()),
                  matrix.starts.data(), matrix.rows.data(), matrix.factors.data(),
                  column_least.data(), column_most.data(), costs.data(), row_least.data(),
                  row_most.data());
  clp.primal();
  if (clp.isProvenOptimal()) return read(program, clp);
  if (clp.isProvenPrimalInfeasible()) return Solution{.outcome = Outcome::kInfeasible};
  if (clp.isProvenDualInfeasible()) return Solution{.outcome = Outcome::kUnbounded};
  if (clp.isIterationLimitReached()) return Solution{.outcome = Outcome::kLimit};
  return Error(Code::kInternal, fmt::format("the solver gave up with status {} after {} steps",
                                            clp.status(), clp.numberIterations()));
}

}  // namespace

Result<Solution> solve(const Program& program, int steps_most) {
  TRY_OK(check(program));
  try {
    return run(program, steps_most);
  } catch (const CoinError& error) {
    return Error(Code::kInternal, "the solver: " + error.message());
  }
}

}  // namespace rubato::sched::lp
