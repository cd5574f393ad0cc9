#include "scheduler/solver/matching.h"

#include "common/check.h"

#include <utility>

namespace rubato::sched {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

// Rows are matched one after the other. The potentials are such that no cost is below the sum of
// those of its row and column, and that the cost of each matched pair is that sum.
class Matcher {
 public:
  explicit Matcher(const CostTable& costs)
      : costs_(costs),
        of_row_(costs.rows(), 0),
        of_column_(costs.columns(), 0),
        owner_(costs.columns(), kNobody) {}

  // False: there is no path to a column that nobody has.
  bool add(std::size_t row) {
    distance_.assign(owner_.size(), kNoMatch);
    before_.assign(owner_.size(), kNobody);
    is_reached_.assign(owner_.size(), 0);
    std::vector<std::size_t> reached;
    std::int64_t so_far = 0;
    std::size_t at_row = row;
    std::size_t at = kNobody;
    while (true) {
      look_from(at_row, at, so_far);
      const std::size_t next = nearest();
      if (next == kNobody) return false;
      so_far = distance_[next];
      at = next;
      if (owner_[at] == kNobody) break;
      is_reached_[at] = 1;
      reached.push_back(at);
      at_row = owner_[at];
    }
    of_row_[row] += so_far;
    for (const std::size_t column : reached) {
      of_row_[owner_[column]] += so_far - distance_[column];
      of_column_[column] -= so_far - distance_[column];
    }
    for (; at != kNobody; at = before_[at])
      owner_[at] = before_[at] == kNobody ? row : owner_[before_[at]];
    return true;
  }

  std::vector<std::size_t> columns() const {
    std::vector<std::size_t> columns(of_row_.size(), kNobody);
    for (std::size_t column = 0; column < owner_.size(); ++column)
      if (owner_[column] != kNobody) columns[owner_[column]] = column;
    return columns;
  }

 private:
  // `through`: the column that its row was reached by.
  void look_from(std::size_t row, std::size_t through, std::int64_t so_far) {
    for (std::size_t column = 0; column < owner_.size(); ++column) {
      const std::int64_t cost = costs_.at(row, column);
      if (cost == kNoMatch || is_reached_[column] != 0) continue;
      const std::int64_t there = so_far + cost - of_row_[row] - of_column_[column];
      if (there >= distance_[column]) continue;
      distance_[column] = there;
      before_[column] = through;
    }
  }

  std::size_t nearest() const {
    std::size_t best = kNobody;
    for (std::size_t column = 0; column < owner_.size(); ++column) {
      if (is_reached_[column] != 0 || distance_[column] == kNoMatch) continue;
      if (best == kNobody || distance_[column] < distance_[best]) best = column;
    }
    return best;
  }

  const CostTable& costs_;
  std::vector<std::int64_t> of_row_;
  std::vector<std::int64_t> of_column_;
  std::vector<std::size_t> owner_;  // row, by column
  // Of one search, by column.
  std::vector<std::int64_t> distance_;
  std::vector<std::size_t> before_;
  std::vector<char> is_reached_;
};

}  // namespace

std::optional<std::vector<std::size_t>> least_cost_matching(const CostTable& costs) {
  for (std::size_t row = 0; row < costs.rows(); ++row) {
    for (std::size_t column = 0; column < costs.columns(); ++column) {
      const std::int64_t cost = costs.at(row, column);
      CHECK(cost == kNoMatch || (cost <= kMatchCostMost && cost >= -kMatchCostMost));
    }
  }
  Matcher matcher(costs);
  for (std::size_t row = 0; row < costs.rows(); ++row)
    if (!matcher.add(row)) return std::nullopt;
  return matcher.columns();
}

}  // namespace rubato::sched
