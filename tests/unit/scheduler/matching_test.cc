// Least-cost matchings, against all there are.
#include "scheduler/solver/matching.h"

#include "common/rng.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

std::optional<std::int64_t> least_cost(const CostTable& costs, std::size_t row,
                                       std::set<std::size_t>& taken) {
  if (row == costs.rows()) return 0;
  std::optional<std::int64_t> least;
  for (std::size_t column = 0; column < costs.columns(); ++column) {
    if (costs.at(row, column) == kNoMatch || !taken.insert(column).second) continue;
    if (const auto rest = least_cost(costs, row + 1, taken))
      least = std::min(least.value_or(kNoMatch), costs.at(row, column) + *rest);
    taken.erase(column);
  }
  return least;
}

std::int64_t cost_of(const CostTable& costs, const std::vector<std::size_t>& columns) {
  std::int64_t sum = 0;
  for (std::size_t row = 0; row < columns.size(); ++row) sum += costs.at(row, columns[row]);
  return sum;
}

CostTable table(const std::vector<std::vector<std::int64_t>>& rows) {
  CostTable costs(rows.size(), rows.front().size());
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < rows[r].size(); ++c) costs.at(r, c) = rows[r][c];
  return costs;
}

// The first row would rather have what the second one needs.
TEST(Matching, ARowGivesWayWhereItCostsLess) {
  EXPECT_EQ(least_cost_matching(table({{1, 2}, {1, 9}})), (std::vector<std::size_t>{1, 0}));
}

TEST(Matching, EqualCostsGiveTheFirstColumns) {
  EXPECT_EQ(least_cost_matching(table({{5, 5, 5}, {5, 5, 5}})), (std::vector<std::size_t>{0, 1}));
}

TEST(Matching, NoRowsAndNoColumns) {
  EXPECT_EQ(least_cost_matching(CostTable(0, 3)), std::vector<std::size_t>{});
  EXPECT_EQ(least_cost_matching(CostTable(1, 0)), std::nullopt);
}

TEST(Matching, TheLargestCostsStayExact) {
  constexpr std::int64_t kMost = kMatchCostMost;
  const CostTable costs = table({{kMost, kMost - 1}, {-kMost, -kMost + 2}});
  EXPECT_EQ(least_cost_matching(costs), (std::vector<std::size_t>{1, 0}));
}

TEST(Matching, CostsTheLeastOfAllOnDrawnTables) {
  std::size_t impossible = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::size_t rows = 1 + rng.below(5);
    CostTable costs(rows, rows + rng.below(3));
    const std::uint64_t spread = rng.chance(0.5) ? 4 : 1'000'000'000'000;
    for (std::size_t r = 0; r < costs.rows(); ++r)
      for (std::size_t c = 0; c < costs.columns(); ++c)
        if (!rng.chance(0.3))
          costs.at(r, c) =
              static_cast<std::int64_t>(rng.below(spread)) - static_cast<std::int64_t>(spread / 2);
    std::set<std::size_t> taken;
    const auto least = least_cost(costs, 0, taken);
    const auto columns = least_cost_matching(costs);
    ASSERT_EQ(columns.has_value(), least.has_value());
    if (!columns) {
      ++impossible;
      continue;
    }
    EXPECT_EQ(std::set(columns->begin(), columns->end()).size(), rows);
    EXPECT_EQ(cost_of(costs, *columns), *least);
    EXPECT_EQ(least_cost_matching(costs), columns);
  }
  EXPECT_GT(impossible, 100u);
}

}  // namespace
}  // namespace rubato::sched
