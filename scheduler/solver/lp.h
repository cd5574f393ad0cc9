// Linear programs: the best point of a polyhedron, for policies whose shares are one. Values in,
// values out; which solver does it is lp.cc's business (docs/adr/lp-solver.md).
//
// The answer is a vertex: at most as many columns are strictly between their bounds as there are
// rows, so shares are not spread thinly over everything that is equally good. Equal programs give
// equal answers, to the bit: one thread, no clock, no chance, steps counted. Where several vertices
// are best, which one it is depends on the order of rows and columns, and on nothing else.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <limits>
#include <vector>

namespace rubato::sched::lp {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

struct Bounds {
  double least = -kInfinite;
  double most = kInfinite;
};

struct Column {
  double cost = 0;  // in the objective
  Bounds bounds{.least = 0};
};

struct Term {
  std::size_t column = 0;
  double factor = 0;
};

struct Row {
  std::vector<Term> terms;  // each column once at most
  Bounds bounds;            // of their sum
};

struct Program {
  bool maximise = false;
  std::vector<Column> columns;
  std::vector<Row> rows;
};

enum class Outcome {
  kOptimal,
  kInfeasible,
  kUnbounded,
  kLimit,  // steps ran out first
};

struct Solution {
  Outcome outcome = Outcome::kOptimal;
  // With kOptimal only:
  double objective = 0;
  std::vector<double> values;  // by column, within its bounds; rows hold to 1e-7
  // By row: what the objective gains where the row's binding bound rises by one; 0: it binds not.
  std::vector<double> prices;
};

inline constexpr int kStepsMost = 1'000'000;  // of the simplex method

// kInvalid: a factor or cost is not finite, bounds cross, or a term names no column or one twice.
// kInternal: the solver gave up, in numbers that are too far apart.
Result<Solution> solve(const Program& program, int steps_most = kStepsMost);

}  // namespace rubato::sched::lp
