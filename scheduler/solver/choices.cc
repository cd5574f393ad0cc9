#include "scheduler/solver/choices.h"

#include "scheduler/solver/lp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <queue>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kIntegral = 1e-6;
constexpr double kFits = 1e-7;  // as rows of a linear program hold
constexpr int kImprovements = 3;
constexpr double kTableStepsMost = 5e7;

struct ChoiceColumn {
  std::size_t group = 0;
  std::size_t choice = 0;
};

struct Decision {
  std::size_t column = 0;
  bool is_taken = false;
};

// What is left to decide.
struct Branch {
  double bound = 0;
  std::size_t number = 0;
  std::vector<Decision> decisions;
  // A queue begins with the least bound, and of equal ones with the latest, which is deepest.
  bool operator<(const Branch& other) const {
    return bound != other.bound ? bound > other.bound : number < other.number;
  }
};

struct Relaxed {
  double bound = 0;
  std::vector<double> values;   // by column
  std::vector<double> reduced;  // by column: its reduced cost
};

// By dynamic programming, where amounts are whole: the least cost of the first groups for each
// vector of amounts that is left to them.
class ChoiceTable {
 public:
  // None: amounts are not whole, or the table would be too large.
  static std::optional<ChoiceTable> of(const ChoiceProgram& program) {
    ChoiceTable table(program);
    double steps = 0;
    for (const ChoiceGroup& group : program.groups) {
      steps += 1 + static_cast<double>(group.choices.size());
      for (const GroupChoice& one : group.choices)
        for (const CapacityUse& use : one.uses)
          if (use.amount != std::floor(use.amount)) return std::nullopt;
    }
    double states = 1;
    for (std::size_t i = 0; i < program.capacities.size(); ++i) {
      states *= table.levels_of(i);
      if (states * steps > kTableStepsMost) return std::nullopt;
    }
    return table;
  }

  Chosen run() {
    lay_out();
    std::vector<double> least(states_, 0);
    for (const ChoiceGroup& group : program_.groups) least = with(group, least);
    Chosen chosen{.choices = {}, .cost = least.back(), .bound = least.back()};
    std::size_t state = states_ - 1;
    chosen.choices.resize(program_.groups.size());
    for (std::size_t g = program_.groups.size(); g-- > 0;) {
      const std::uint32_t taken = taken_[g * states_ + state];
      if (taken == kNone) continue;
      chosen.choices[g] = taken;
      state -= offset_of(program_.groups[g].choices[taken]);
    }
    return chosen;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  explicit ChoiceTable(const ChoiceProgram& program) : program_(program) {}

  // Amounts that may be left of it: from none to all that anybody could use.
  double levels_of(std::size_t capacity) const {
    double most = 0;
    for (const ChoiceGroup& group : program_.groups) {
      double of_group = 0;
      for (const GroupChoice& one : group.choices)
        for (const CapacityUse& use : one.uses)
          if (use.capacity == capacity) of_group = std::max(of_group, use.amount);
      most += of_group;
    }
    return std::floor(std::min(most, program_.capacities[capacity])) + 1;
  }

  void lay_out() {
    for (std::size_t i = 0; i < program_.capacities.size(); ++i) {
      strides_.push_back(states_);
      states_ *= static_cast<std::size_t>(levels_of(i));
    }
    for (std::size_t i = 0; i < strides_.size(); ++i) {
      const std::size_t end = i + 1 < strides_.size() ? strides_[i + 1] : states_;
      left_.emplace_back(states_);
      for (std::size_t state = 0; state < states_; ++state)
        left_[i][state] = static_cast<std::uint32_t>(state % end / strides_[i]);
    }
    taken_.reserve(program_.groups.size() * states_);
  }

  std::size_t offset_of(const GroupChoice& choice) const {
    std::size_t offset = 0;
    for (const auto& [capacity, amount] : choice.uses)
      offset += strides_[capacity] * static_cast<std::size_t>(amount);
    return offset;
  }

  // The least costs with one more group.
  std::vector<double> with(const ChoiceGroup& group, const std::vector<double>& before) {
    const std::size_t row = taken_.size();
    taken_.resize(row + states_, kNone);
    std::vector<double> least = before;
    for (double& cost : least) cost += group.cost_of_none;
    for (std::size_t c = 0; c < group.choices.size(); ++c) {
      const GroupChoice& one = group.choices[c];
      const std::size_t offset = offset_of(one);
      for (std::size_t state = offset; state < states_; ++state) {
        const double cost = before[state - offset] + one.cost;
        if (cost >= least[state] || !has_room(one, state)) continue;
        least[state] = cost;
        taken_[row + state] = static_cast<std::uint32_t>(c);
      }
    }
    return least;
  }

  bool has_room(const GroupChoice& choice, std::size_t state) const {
    return std::ranges::all_of(choice.uses, [&](const CapacityUse& use) {
      return left_[use.capacity][state] >= use.amount;
    });
  }

  const ChoiceProgram& program_;
  std::size_t states_ = 1;
  std::vector<std::size_t> strides_;              // by capacity
  std::vector<std::vector<std::uint32_t>> left_;  // by capacity and state
  std::vector<std::uint32_t> taken_;              // by group and state
};

class ChoiceSearch {
 public:
  ChoiceSearch(const ChoiceProgram& program, int programs_most)
      : program_(program), programs_most_(programs_most) {
    for (std::size_t g = 0; g < program.groups.size(); ++g) {
      first_column_.push_back(columns_.size());
      for (std::size_t c = 0; c < program.groups[g].choices.size(); ++c) columns_.push_back({g, c});
    }
    is_open_.assign(columns_.size(), 1);
    best_.choices.assign(program.groups.size(), std::nullopt);
    best_.cost = cost_of(best_.choices);
    improve(std::vector<double>(columns_.size(), 0));
  }

  Chosen run() {
    best_.bound = best_.cost;
    open_.push({.bound = trivial_bound()});
    while (!open_.empty() && !is_close(open_.top().bound) && best_.programs < programs_most_) {
      const Branch branch = open_.top();
      open_.pop();
      look_into(branch);
    }
    if (!open_.empty()) leave(open_.top().bound);
    best_.bound = std::min(best_.bound, best_.cost);
    return std::move(best_);
  }

 private:
  using Picks = std::vector<std::optional<std::size_t>>;

  const GroupChoice& choice(std::size_t column) const {
    return program_.groups[columns_[column].group].choices[columns_[column].choice];
  }
  double saving(std::size_t column) const {
    return program_.groups[columns_[column].group].cost_of_none - choice(column).cost;
  }

  double cost_of(const Picks& picks) const {
    double cost = 0;
    for (std::size_t g = 0; g < picks.size(); ++g) {
      const ChoiceGroup& group = program_.groups[g];
      cost += picks[g] ? group.choices[*picks[g]].cost : group.cost_of_none;
    }
    return cost;
  }

  // Each has its cheapest, as if there were enough.
  double trivial_bound() const {
    double bound = 0;
    for (const ChoiceGroup& group : program_.groups) {
      double least = group.cost_of_none;
      for (const GroupChoice& one : group.choices) least = std::min(least, one.cost);
      bound += least;
    }
    return bound;
  }

  bool is_close(double bound) const {
    return best_.cost - bound <= kChoiceGap * std::max(best_.cost, 0.0);
  }

  // Something there may cost as little as that.
  void leave(double bound) { best_.bound = std::min(best_.bound, bound); }

  void look_into(const Branch& branch) {
    ++best_.programs;
    const auto relaxed = relax(branch);
    if (!relaxed) return leave(branch.bound);
    if (relaxed->bound < best_.cost) improve(relaxed->values);
    if (is_close(relaxed->bound)) return leave(relaxed->bound);
    if (branch.decisions.empty()) close_columns(*relaxed);
    const auto column = most_divided(relaxed->values);
    if (!column) return leave(relaxed->bound);  // whole: what came of it is the best there
    for (const bool is_taken : {false, true}) {
      Branch next{relaxed->bound, ++branches_, branch.decisions};
      next.decisions.push_back({*column, is_taken});
      open_.push(std::move(next));
    }
  }

  // What a branch leaves to decide.
  struct Rest {
    double cost = 0;  // of what is decided, and of nothing else
    std::vector<double> left;
    std::vector<std::size_t> columns;
  };
  Rest rest_of(const Branch& branch) const {
    Rest rest{.left = program_.capacities, .columns = {}};
    std::vector<char> may_take = is_open_;
    std::vector<char> is_decided(program_.groups.size(), 0);
    for (const ChoiceGroup& group : program_.groups) rest.cost += group.cost_of_none;
    for (const auto& [column, is_taken] : branch.decisions) {
      may_take[column] = 0;
      if (!is_taken) continue;
      is_decided[columns_[column].group] = 1;
      rest.cost -= saving(column);
      for (const auto& [capacity, amount] : choice(column).uses) rest.left[capacity] -= amount;
    }
    for (std::size_t column = 0; column < columns_.size(); ++column)
      if (may_take[column] != 0 && is_decided[columns_[column].group] == 0)
        rest.columns.push_back(column);
    return rest;
  }

  // None: the solver gave up. Its bound is infinite where the decisions do not fit.
  std::optional<Relaxed> relax(const Branch& branch) const {
    const Rest rest = rest_of(branch);
    if (std::ranges::any_of(rest.left, [](double amount) { return amount < -kFits; }))
      return Relaxed{.bound = lp::kInfinite, .values = {}, .reduced = {}};
    Relaxed relaxed{.bound = rest.cost,
                    .values = std::vector<double>(columns_.size(), 0),
                    .reduced = std::vector<double>(columns_.size(), 0)};
    for (const auto& [column, is_taken] : branch.decisions)
      if (is_taken) relaxed.values[column] = 1;
    lp::Program program;
    for (const double amount : rest.left)
      program.rows.push_back({.terms = {}, .bounds = {.most = std::max(amount, 0.0)}});
    std::vector<std::size_t> row_of;
    for (std::size_t i = 0; i < rest.columns.size(); ++i) {
      const std::size_t group = columns_[rest.columns[i]].group;
      if (i == 0 || columns_[rest.columns[i - 1]].group != group)
        program.rows.push_back({.terms = {}, .bounds = {.most = 1}});
      row_of.push_back(program.rows.size() - 1);
      add_column(rest.columns[i], i, program);
    }
    const auto solution = lp::solve(program);
    if (!solution.ok() || solution->outcome != lp::Outcome::kOptimal) return std::nullopt;
    relaxed.bound += solution->objective;
    for (std::size_t i = 0; i < rest.columns.size(); ++i) {
      relaxed.values[rest.columns[i]] = solution->values[i];
      double& reduced = relaxed.reduced[rest.columns[i]];
      reduced = -saving(rest.columns[i]) - solution->prices[row_of[i]];
      for (const auto& [capacity, amount] : choice(rest.columns[i]).uses)
        reduced -= solution->prices[capacity] * amount;
    }
    return relaxed;
  }

  void add_column(std::size_t column, std::size_t at, lp::Program& to) const {
    to.columns.push_back({.cost = -saving(column)});
    to.rows.back().terms.push_back({at, 1});
    for (const auto& [capacity, amount] : choice(column).uses)
      to.rows[capacity].terms.push_back({at, amount});
  }

  // Those that are in nothing better than the best that was found.
  void close_columns(const Relaxed& relaxed) {
    for (std::size_t column = 0; column < columns_.size(); ++column)
      if (relaxed.values[column] < kIntegral &&
          relaxed.bound + relaxed.reduced[column] > best_.cost * (1 + kIntegral))
        is_open_[column] = 0;
  }

  // The one that is nearest to be taken whole, and is not; none: all are whole.
  static std::optional<std::size_t> most_divided(const std::vector<double>& values) {
    std::optional<std::size_t> most;
    for (std::size_t column = 0; column < values.size(); ++column) {
      if (values[column] < kIntegral || values[column] > 1 - kIntegral) continue;
      if (!most || values[column] > values[*most]) most = column;
    }
    return most;
  }

  // What the vertex takes whole or by more than half, as far as it fits; then each group in turn
  // takes the cheapest that there is room for. Kept if it is the best so far.
  void improve(const std::vector<double>& values) {
    std::vector<double> left = program_.capacities;
    Picks picks(program_.groups.size());
    for (const double least : {1 - kIntegral, 0.5}) {
      for (std::size_t column = 0; column < columns_.size(); ++column) {
        const auto& [group, choice] = columns_[column];
        if (values[column] < least || picks[group] || !fits(column, left)) continue;
        picks[group] = choice;
        take(column, 1, left);
      }
    }
    for (int pass = 0; pass < kImprovements; ++pass)
      for (std::size_t g = 0; g < picks.size(); ++g) pick_cheapest(g, picks, left);
    const double cost = cost_of(picks);
    if (cost >= best_.cost) return;
    best_.cost = cost;
    best_.choices = std::move(picks);
  }

  void pick_cheapest(std::size_t g, Picks& picks, std::vector<double>& left) const {
    const std::size_t first = first_column_[g];
    if (picks[g]) take(first + *picks[g], -1, left);
    double most = picks[g] ? saving(first + *picks[g]) : 0;
    for (std::size_t c = 0; c < program_.groups[g].choices.size(); ++c) {
      if (saving(first + c) <= most || !fits(first + c, left)) continue;
      picks[g] = c;
      most = saving(first + c);
    }
    if (picks[g]) take(first + *picks[g], 1, left);
  }

  void take(std::size_t column, double sign, std::vector<double>& left) const {
    for (const auto& [capacity, amount] : choice(column).uses) left[capacity] -= sign * amount;
  }

  bool fits(std::size_t column, const std::vector<double>& left) const {
    return std::ranges::all_of(choice(column).uses, [&](const CapacityUse& use) {
      return use.amount <= left[use.capacity] + kFits;
    });
  }

  const ChoiceProgram& program_;
  int programs_most_;
  std::vector<ChoiceColumn> columns_;      // those of a group together
  std::vector<std::size_t> first_column_;  // by group
  std::vector<char> is_open_;              // by column
  std::priority_queue<Branch> open_;
  std::size_t branches_ = 0;
  Chosen best_;
};

}  // namespace

Chosen least_cost_choices(const ChoiceProgram& program, int programs_most) {
  if (auto table = ChoiceTable::of(program)) return table->run();
  return ChoiceSearch(program, programs_most).run();
}

}  // namespace rubato::sched
