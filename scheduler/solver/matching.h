// The least-cost matching of rows to columns: each row has one column, no column has two, and the
// sum of the costs is the least that there is. By shortest augmenting paths with potentials
// (Kuhn's Hungarian method, 1955, in the form of Tomizawa, 1971): exact, for costs are integers,
// and equal costs give equal matchings, because of equal paths the one through the first columns is
// taken. O(R² · C) for R rows and C columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace rubato::sched {

// No cost: the two do not go together.
constexpr std::int64_t kNoMatch = std::numeric_limits<std::int64_t>::max();
// The largest cost, either way: sums of 2^12 rows stay integers.
constexpr std::int64_t kMatchCostMost = std::int64_t{1} << 49U;

class CostTable {
 public:
  CostTable(std::size_t rows, std::size_t columns)
      : rows_(rows), columns_(columns), all_(rows * columns, kNoMatch) {}
  std::int64_t& at(std::size_t row, std::size_t column) { return all_[row * columns_ + column]; }
  std::int64_t at(std::size_t row, std::size_t column) const {
    return all_[row * columns_ + column];
  }
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }

 private:
  std::size_t rows_;
  std::size_t columns_;
  std::vector<std::int64_t> all_;
};

// The column of each row. None: not all rows can be matched.
std::optional<std::vector<std::size_t>> least_cost_matching(const CostTable& costs);

}  // namespace rubato::sched
