// Linear programs: known ones, those without an answer, and random ones against all vertices.
#include "common/rng.h"
#include "tests/unit/scheduler/vertices.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

namespace rubato::sched::lp {
namespace {

constexpr std::uint64_t kDrawnPrograms = 400;

// Dantzig's example: 3x + 5y within x <= 4, 2y <= 12, 3x + 2y <= 18.
Program dantzigs() {
  return {.maximise = true,
          .columns = {{.cost = 3}, {.cost = 5}},
          .rows = {{.terms = {{0, 1}}, .bounds = {.most = 4}},
                   {.terms = {{1, 2}}, .bounds = {.most = 12}},
                   {.terms = {{0, 3}, {1, 2}}, .bounds = {.most = 18}}}};
}

TEST(LinearProgram, FindsTheBestVertexAndWhatItsRowsAreWorth) {
  const auto solution = solve(dantzigs());
  ASSERT_TRUE(solution.ok());
  EXPECT_EQ(solution->outcome, Outcome::kOptimal);
  EXPECT_NEAR(solution->objective, 36, kNear);
  EXPECT_NEAR(solution->values.at(0), 2, kNear);
  EXPECT_NEAR(solution->values.at(1), 6, kNear);
  EXPECT_NEAR(solution->prices.at(0), 0, kNear);
  EXPECT_NEAR(solution->prices.at(1), 1.5, kNear);
  EXPECT_NEAR(solution->prices.at(2), 1, kNear);
}

TEST(LinearProgram, MinimisesBetweenBounds) {
  const Program program{
      .columns = {{.cost = -1, .bounds = {-2, 3}}, {.cost = 2, .bounds = {-4, 5}}},
      .rows = {{.terms = {{0, 1}, {1, 1}}, .bounds = {0, 1}}}};
  const auto solution = solve(program);
  ASSERT_TRUE(solution.ok());
  EXPECT_NEAR(solution->objective, -9, kNear);
  EXPECT_NEAR(solution->values.at(0), 3, kNear);
  EXPECT_NEAR(solution->values.at(1), -3, kNear);
}

TEST(LinearProgram, SaysThatNothingIsFeasible) {
  Program program = dantzigs();
  program.rows.push_back({.terms = {{0, 1}, {1, 1}}, .bounds = {.least = 100}});
  EXPECT_EQ(solve(program)->outcome, Outcome::kInfeasible);
}

TEST(LinearProgram, SaysThatThereIsNoBest) {
  Program program = dantzigs();
  program.columns.push_back({.cost = 1});
  EXPECT_EQ(solve(program)->outcome, Outcome::kUnbounded);
}

TEST(LinearProgram, StopsAtItsLimit) { EXPECT_EQ(solve(dantzigs(), 1)->outcome, Outcome::kLimit); }

TEST(LinearProgram, WithoutRowsOrColumns) {
  EXPECT_EQ(solve({})->outcome, Outcome::kOptimal);
  const auto solution = solve({.maximise = true, .columns = {{.cost = 2, .bounds = {0, 7}}}});
  EXPECT_NEAR(solution->objective, 14, kNear);
}

// Beale's, on which the simplex method goes round in circles if nothing prevents it.
TEST(LinearProgram, DegenerateOnesEnd) {
  const Program program{
      .columns = {{.cost = -0.75}, {.cost = 150}, {.cost = -0.02}, {.cost = 6}},
      .rows = {{.terms = {{0, 0.25}, {1, -60}, {2, -0.04}, {3, 9}}, .bounds = {.most = 0}},
               {.terms = {{0, 0.5}, {1, -90}, {2, -0.02}, {3, 3}}, .bounds = {.most = 0}},
               {.terms = {{2, 1}}, .bounds = {.most = 1}}}};
  const auto solution = solve(program);
  ASSERT_TRUE(solution.ok());
  EXPECT_EQ(solution->outcome, Outcome::kOptimal);
  EXPECT_NEAR(solution->objective, -0.05, kNear);
}

TEST(LinearProgram, RefusesWhatIsNone) {
  const auto code = [](const auto& spoil) {
    Program program = dantzigs();
    spoil(program);
    const auto solution = solve(program);
    return solution.ok() ? std::nullopt : std::optional(solution.error().code());
  };
  EXPECT_EQ(code([](Program& p) { p.columns[0].cost = std::nan(""); }), Code::kInvalid);
  EXPECT_EQ(code([](Program& p) { p.columns[0].bounds = {1, 0}; }), Code::kInvalid);
  EXPECT_EQ(code([](Program& p) { p.rows[0].bounds.most = std::nan(""); }), Code::kInvalid);
  EXPECT_EQ(code([](Program& p) { p.rows[0].terms[0].factor = kInfinite; }), Code::kInvalid);
  EXPECT_EQ(code([](Program& p) { p.rows[0].terms[0].column = 2; }), Code::kInvalid);
  EXPECT_EQ(code([](Program& p) { p.rows[0].terms.push_back({0, 1}); }), Code::kInvalid);
}

// Up to four columns, each between two numbers, and up to four rows.
Program drawn(std::uint64_t seed) {
  Rng rng(seed);
  const auto whole = [&](std::int64_t from, std::int64_t to) {
    return static_cast<double>(from) +
           static_cast<double>(rng.below(static_cast<std::uint64_t>(to - from + 1)));
  };
  Program program{.maximise = rng.chance(0.5)};
  const std::uint64_t columns = 1 + rng.below(4);
  const std::uint64_t rows = rng.below(5);
  for (std::uint64_t c = 0; c < columns; ++c) {
    const double least = whole(-3, 0);
    program.columns.push_back({whole(-5, 5), {least, least + whole(0, 6)}});
  }
  for (std::uint64_t r = 0; r < rows; ++r) {
    Row row;
    for (std::size_t c = 0; c < columns; ++c)
      if (rng.chance(0.7)) row.terms.push_back({c, whole(-4, 4)});
    if (rng.chance(0.7)) row.bounds.most = whole(-4, 9);
    if (rng.chance(0.4)) row.bounds.least = std::min(whole(-6, 4), row.bounds.most);
    program.rows.push_back(std::move(row));
  }
  return program;
}

TEST(LinearProgram, IsAsGoodAsTheBestOfAllVerticesOnDrawnPrograms) {
  std::size_t infeasible = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnPrograms; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = drawn(seed);
    const auto solution = solve(program);
    ASSERT_TRUE(solution.ok());
    const auto best = best_vertex(program);
    if (!best) {
      ++infeasible;
      EXPECT_EQ(solution->outcome, Outcome::kInfeasible);
      continue;
    }
    ASSERT_EQ(solution->outcome, Outcome::kOptimal);
    EXPECT_NEAR(solution->objective, *best, kNear);
    EXPECT_TRUE(is_feasible(program, solution->values));
    const auto again = solve(program);
    EXPECT_EQ(again->values, solution->values);
    EXPECT_EQ(again->prices, solution->prices);
  }
  EXPECT_GT(infeasible, kDrawnPrograms / 20);
  EXPECT_LT(infeasible, kDrawnPrograms / 2);
}

}  // namespace
}  // namespace rubato::sched::lp
