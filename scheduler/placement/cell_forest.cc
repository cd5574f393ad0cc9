// The cells of one GPU type, what is bound of them, and the invariant: cells.h.
#include "common/check.h"
#include "scheduler/placement/cells.h"

#include <algorithm>

namespace rubato::sched {
namespace {

// The number that most of them are; of equals the largest. 0: there are none.
std::int64_t most_common(const std::vector<std::int64_t>& numbers) {
  std::map<std::int64_t, std::int64_t> times;
  for (const std::int64_t number : numbers) ++times[number];
  const auto most = std::ranges::max_element(
      times, {}, [](const auto& one) { return std::pair(one.second, one.first); });
  return most == times.end() ? 0 : most->first;
}

}  // namespace

CellForest::CellForest(const Problem& problem, TypeIndex type) {
  add_nodes(problem, type);
  for (std::size_t level = problem.state().levels.size(); level-- > 0;) add_domains(problem, level);
  free_.assign(count_levels(), 0);
  claimed_.assign(count_levels(), 0);
  for (const Cell& cell : cells_)
    if (!cell.parent) ++free_[cell.level];
}

CellForest::Number CellForest::add_cell(std::size_t level, std::vector<NodeIndex> nodes) {
  cells_.push_back({.level = level, .nodes = std::move(nodes)});
  return static_cast<Number>(cells_.size() - 1);
}

void CellForest::add_nodes(const Problem& problem, TypeIndex type) {
  std::vector<std::int64_t> gpus;
  for (NodeIndex n; n < problem.end_of_nodes(); ++n)
    if (problem.type_of(n) == type) gpus.push_back(problem.node(n).gpus_total);
  const Gpus usual = most_common(gpus);
  fan_out_.push_back(0);
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    if (problem.type_of(n) != type) continue;
    const Node& node = problem.node(n);
    of_node_[n] = add_cell(0, {n});
    cells_.back().is_bad = !node.schedulable || node.gpus_total < usual;
  }
}

void CellForest::add_domains(const Problem& problem, std::size_t topology_level) {
  const std::size_t level = count_levels();
  std::map<DomainIndex, std::vector<Number>> children;
  for (Number c = 0; c < end(); ++c) {
    if (cells_[c].level + 1 != level) continue;
    if (const auto domain = problem.domain_of(topology_level, cells_[c].nodes.front()))
      children[*domain].push_back(c);
  }
  std::vector<std::int64_t> counts;
  counts.reserve(children.size());
  for (const auto& [domain, cells] : children) counts.push_back(std::ssize(cells));
  fan_out_.push_back(most_common(counts));
  for (const auto& [domain, cells] : children) {
    if (std::ssize(cells) != fan_out_[level]) continue;
    std::vector<NodeIndex> nodes;
    for (const Number c : cells)
      nodes.insert(nodes.end(), cells_[c].nodes.begin(), cells_[c].nodes.end());
    const Number parent = add_cell(level, std::move(nodes));
    for (const Number c : cells) cells_[c].parent = parent;
  }
}

std::optional<CellForest::Number> CellForest::at(NodeIndex node, std::size_t level) const {
  const auto found = of_node_.find(node);
  std::optional<Number> cell =
      found == of_node_.end() ? std::nullopt : std::optional(found->second);
  while (cell && cells_[*cell].level < level) cell = cells_[*cell].parent;
  return cell;
}

CellForest::Number CellForest::whole_of(Number cell) const {
  while (cells_[cell].parent && cells_[*cells_[cell].parent].taken_below == 0)
    cell = *cells_[cell].parent;
  return cell;
}

std::optional<CellForest::Number> CellForest::owner_above(Number cell) const {
  std::optional<Number> above = cell;
  while (above && !cells_[*above].owner) above = cells_[*above].parent;
  return above;
}

void CellForest::add_claim(QueueIndex queue, std::size_t level, std::int64_t more) {
  claims_[{queue, level}] += more;
  claimed_[level] += more;
}

std::int64_t CellForest::claim(QueueIndex queue, std::size_t level) const {
  const auto found = claims_.find({queue, level});
  return found == claims_.end() ? 0 : found->second;
}

// From the widest level down: what is free there, and left of wider ones.
std::optional<std::size_t> CellForest::lacks(const Counts& free, const Counts& claimed) const {
  std::int64_t left = 0;
  for (std::size_t level = count_levels(); level-- > 0;) {
    left = free[level] + (level + 1 < count_levels() ? left * fan_out_[level + 1] : 0);
    if (left < claimed[level]) return level;
    left -= claimed[level];
  }
  return std::nullopt;
}

bool CellForest::holds_with(Number bound) const {
  Counts free = free_;
  Counts claimed = claimed_;
  count_split(bound, 1, free);
  --claimed[cells_[bound].level];
  return !lacks(free, claimed);
}

bool CellForest::may_bind(Number cell, QueueIndex queue) const {
  return is_free(cell) && claim(queue, cells_[cell].level) > 0 && holds_with(cell);
}

// A free cell is taken out of the one that is whole, whose other parts stay free.
void CellForest::count_split(Number cell, std::int64_t times, Counts& free) const {
  const std::size_t from = cells_[whole_of(cell)].level;
  free[from] -= times;
  for (std::size_t level = from; level > cells_[cell].level; --level)
    free[level - 1] += times * (fan_out_[level] - 1);
}

void CellForest::take(Number free) {
  CHECK(is_free(free));
  count_split(free, 1, free_);
  for (std::optional<Number> c = free; c; c = cells_[*c].parent) ++cells_[*c].taken_below;
}

void CellForest::release(Number taken) {
  for (std::optional<Number> c = taken; c; c = cells_[*c].parent) --cells_[*c].taken_below;
  count_split(taken, -1, free_);
}

void CellForest::bind(Number cell, QueueIndex queue) {
  take(cell);
  cells_[cell].owner = queue;
  add_claim(queue, cells_[cell].level, -1);
}

void CellForest::unbind(Number cell) {
  add_claim(*cells_[cell].owner, cells_[cell].level, 1);
  cells_[cell].owner.reset();
  release(cell);
}

void CellForest::close_bad_nodes() {
  for (const auto& [node, cell] : of_node_) {
    if (!cells_[cell].is_bad || !is_free(cell)) continue;
    take(cell);
    cells_[cell].is_closed = true;
    for (std::optional<Number> c = cell; c; c = cells_[*c].parent) ++cells_[*c].closed_below;
  }
}

void CellForest::open_below(Number cell) {
  for (const NodeIndex node : cells_[cell].nodes) {
    const Number own = of_node_.at(node);
    if (!cells_[own].is_closed) continue;
    cells_[own].is_closed = false;
    for (std::optional<Number> c = own; c; c = cells_[*c].parent) --cells_[*c].closed_below;
    release(own);
  }
}

}  // namespace rubato::sched
