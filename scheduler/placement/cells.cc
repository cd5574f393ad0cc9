// Which queues have cells, what is bound, and which cells a gang gets: cells.h.
#include "scheduler/placement/cells.h"

#include "common/check.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::sched {
namespace {

using Number = CellForest::Number;

// One gang that is being placed in the cells of its queue.
class CellGang {
 public:
  // `tight`: no more is split than must be, whoever would have to leave; else those are few.
  CellGang(CellForest& forest, const Cells::Demand& demand,
           const Table<NodeIndex, std::int64_t>& fits, bool tight)
      : forest_(forest), demand_(demand), fits_(fits), tight_(tight), rest_(demand.pods) {}

  bool run() {
    take_what_is_bound();
    return pick(forest_.count_levels());
  }
  struct Taken {
    NodeIndex node;
    std::size_t level;
  };
  const std::vector<Taken>& taken() const { return taken_; }

 private:
  Gpus cost(NodeIndex node) const { return (*demand_.costs)[node]; }

  void take_what_is_bound() {
    // Nothing that others do counts here before what the queue itself has there: it is served as
    // if the nodes were its own.
    std::vector<std::tuple<std::int64_t, std::vector<std::size_t>, Gpus, NodeIndex, std::size_t>>
        bound;
    for (Number c = 0; c < forest_.end() && forest_.cell(c).level == 0; ++c) {
      const NodeIndex node = forest_.cell(c).nodes.front();
      const auto owner = forest_.owner_above(c);
      if (owner && forest_.cell(*owner).owner == demand_.queue && fits_[node] > 0)
        bound.emplace_back(demand_.fits[node], (*demand_.inside)[node], cost(node), node,
                           forest_.cell(*owner).level);
    }
    std::ranges::sort(bound);
    for (const auto& [fits, inside, gpus, node, level] : bound) put(node, level);
  }

  void put(NodeIndex node, std::size_t level) {
    const std::int64_t pods = std::min(rest_, fits_[node]);
    taken_.insert(taken_.end(), static_cast<std::size_t>(pods), {node, level});
    rest_ -= pods;
  }

  // Cells below that level, the narrow ones first. False: it cannot be done, and nothing is bound.
  bool pick(std::size_t below) {
    if (rest_ == 0) return true;
    if (below == 0) return false;
    if (pick(below - 1)) return true;
    const std::size_t level = below - 1;
    if (forest_.claim(demand_.queue, level) == 0) return false;
    const auto best = best_of(level);
    if (!best) return false;
    const std::size_t before = taken_.size();
    forest_.bind(*best, demand_.queue);
    std::vector<NodeIndex> nodes = forest_.cell(*best).nodes;
    std::ranges::sort(nodes, {}, [&](NodeIndex node) { return std::pair(cost(node), node); });
    for (const NodeIndex node : nodes) put(node, level);
    if (pick(below)) return true;
    forest_.unbind(*best);
    rest_ += static_cast<std::int64_t>(taken_.size() - before);
    taken_.resize(before);
    return false;
  }

  std::int64_t fits_in(Number cell) const {
    std::int64_t pods = 0;
    for (const NodeIndex node : forest_.cell(cell).nodes) pods += fits_[node];
    return pods;
  }

  // The free one that holds most of the gang, among those that the invariant leaves.
  std::optional<Number> best_of(std::size_t level) const {
    using Rank = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, Number>;
    std::vector<Rank> ranks;
    for (Number c = 0; c < forest_.end(); ++c) {
      if (forest_.cell(c).level != level || !forest_.is_free(c)) continue;
      const std::int64_t pods = std::min(rest_, fits_in(c));
      if (pods == 0) continue;
      Gpus leave = 0;
      for (const NodeIndex node : forest_.cell(c).nodes) leave += cost(node);
      const Number whole = forest_.whole_of(c);
      const auto split = static_cast<std::int64_t>(forest_.cell(whole).level);
      if (tight_)
        ranks.emplace_back(-pods, split, -fits_in(whole), leave, c);
      else
        ranks.emplace_back(-pods, leave, split, 0, c);
    }
    std::ranges::sort(ranks);
    for (const Rank& rank : ranks)
      if (forest_.holds_with(std::get<Number>(rank))) return std::get<Number>(rank);
    return std::nullopt;
  }

  CellForest& forest_;
  const Cells::Demand& demand_;
  const Table<NodeIndex, std::int64_t>& fits_;
  const bool tight_;
  std::int64_t rest_;
  std::vector<Taken> taken_;
};

}  // namespace

Cells::Cells(const Problem& problem) : problem_(problem), types_of_(problem.count_queues()) {
  const auto has_some = [](const auto& one) { return !one.second.cells.empty(); };
  if (std::ranges::none_of(problem.state().queues, has_some)) return;
  levels_.emplace_back(kNodeLevel);
  levels_.insert(levels_.end(), problem.state().levels.rbegin(), problem.state().levels.rend());
  inside_ = Table<JobIndex, std::vector<bool>>(problem.state().jobs.size());
  admit_queues();
  bind_what_is_held();
  for (auto& [type, forest] : forests_) {
    forest.close_bad_nodes();
    doom(forest);
  }
}

std::optional<std::size_t> Cells::find_level(const std::string& name) const {
  const auto found = std::ranges::find(levels_, name);
  if (found == levels_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - levels_.begin());
}

void Cells::admit_queues() {
  std::vector<const Queue*> queues;
  for (const auto& [name, queue] : problem_.state().queues)
    if (!queue.cells.empty()) queues.push_back(&queue);
  std::ranges::stable_sort(queues, {}, &Queue::created);
  for (const Queue* queue : queues) {
    std::string why = why_refused(*queue);
    if (!why.empty()) {
      refusals_[queue->name] = std::move(why);
      continue;
    }
    const QueueIndex index = problem_.queue_named(queue->name);
    by_age_.push_back(index);
    for (const CellQuota& cells : queue->cells) {
      const TypeIndex type = problem_.type_named(cells.gpu_type);
      if (std::ranges::find(types_of_[index], type) == types_of_[index].end())
        types_of_[index].push_back(type);
    }
    std::ranges::sort(types_of_[index]);
  }
}

// Empty: its cells are claimed.
std::string Cells::why_refused(const Queue& queue) {
  for (const CellQuota& cells : queue.cells) {
    if (!find_level(cells.level))
      return fmt::format("this installation knows no level \"{}\" (it knows {})", cells.level,
                         fmt::join(levels_, ", "));
    const auto type = problem_.find_type(cells.gpu_type);
    if (!type) return fmt::format("there is no node of GPU type \"{}\"", cells.gpu_type);
    forests_.try_emplace(*type, problem_, *type);
  }
  const QueueIndex index = problem_.queue_named(queue.name);
  const auto add = [&](std::int64_t times) {
    for (const CellQuota& cells : queue.cells)
      forests_.at(problem_.type_named(cells.gpu_type))
          .add_claim(index, *find_level(cells.level), times * cells.count);
  };
  add(1);
  for (const auto& [type, forest] : forests_) {
    const auto level = forest.lacks();
    if (!level) continue;
    add(-1);
    return fmt::format(
        "with what older queues have there are too few cells of level {} and GPU type {}; ask for "
        "fewer, or add nodes",
        levels_[*level], problem_.name(type));
  }
  return "";
}

Gpus Cells::most_of(QueueIndex queue) const {
  Job any;
  any.per_pod.gpus = 1;
  Gpus most = 0;
  for (const TypeIndex type : types_of(queue)) most = std::max(most, most_of(queue, type, any));
  return most;
}

// The best of each level, as many as the queue has, that may overlap.
Gpus Cells::most_of(QueueIndex queue, TypeIndex type, const Job& job) const {
  if (std::ranges::find(types_of(queue), type) == types_of(queue).end()) return 0;
  const CellForest& forest = forests_.at(type);
  const auto fits = [&](NodeIndex node) -> Gpus {
    const Node& of = problem_.node(node);
    return may_use(job, of) ? whole_of(of).copies_of(job.per_pod) * job.per_pod.gpus : 0;
  };
  const auto add = [&](Gpus sum, Gpus more) {
    return job.one_node ? std::max(sum, more) : sum + more;
  };
  Gpus all = 0;
  for (Number c = 0; c < forest.end(); ++c)
    if (forest.cell(c).level == 0) all = add(all, fits(forest.cell(c).nodes.front()));
  Gpus most = 0;
  for (const CellQuota& cells : problem_.queue(queue)->cells) {
    if (problem_.type_named(cells.gpu_type) != type) continue;
    std::vector<Gpus> of_cells;
    for (Number c = 0; c < forest.end(); ++c) {
      if (forest.cell(c).level != *find_level(cells.level)) continue;
      Gpus gpus = 0;
      for (const NodeIndex node : forest.cell(c).nodes) gpus = add(gpus, fits(node));
      of_cells.push_back(gpus);
    }
    std::ranges::sort(of_cells, std::greater{});
    const auto count = std::min<std::int64_t>(cells.count, std::ssize(of_cells));
    for (std::int64_t i = 0; i < count; ++i)
      most = add(most, of_cells[static_cast<std::size_t>(i)]);
  }
  return std::min(most, all);
}

bool Cells::is_inside(JobIndex job, std::size_t held) const {
  return exist() && !inside_[job].empty() && inside_[job][held];
}

// What was bound once is bound again, as far as the invariant leaves it: where queues or nodes have
// changed since, some pods are in no cell any more.
void Cells::bind_what_is_held() {
  std::vector<JobIndex> jobs;
  for (JobIndex j; j < problem_.end_of_jobs(); ++j)
    if (!types_of_[problem_.queue_of(j)].empty()) jobs.push_back(j);
  std::ranges::sort(jobs, {}, [&](JobIndex j) -> const JobId& { return problem_.job(j).id; });
  for (const JobIndex j : jobs) {
    inside_[j].assign(problem_.job(j).held.size(), false);
    for (std::size_t i = 0; i < problem_.job(j).held.size(); ++i) bind_for(j, i);
  }
  std::ranges::stable_sort(jobs, {}, [&](JobIndex j) { return problem_.job(j).queued_at; });
  for (const JobIndex j : jobs)
    if (std::ranges::none_of(inside_[j], std::identity())) adopt(j);
}

// A job that is in no cell, though its queue has some left and may have those that it is on: the
// oldest first, as they would have come into these.
void Cells::adopt(JobIndex j) {
  const Job& job = problem_.job(j);
  const QueueIndex queue = problem_.queue_of(j);
  std::vector<std::pair<CellForest*, Number>> bound;
  Gpus inside = 0;
  for (std::size_t i = 0; i < job.held.size() && inside < job.min; ++i) {
    const auto& [type, node] = problem_.held_at(j)[i];
    const auto forest = forests_.find(type);
    if (!job.held[i].stays() || !node || forest == forests_.end()) break;
    const auto owner = forest->second.owner_above(*forest->second.at(*node, 0));
    if (!owner) {
      const auto cell = cell_around(forest->second, *node, queue);
      if (!cell) break;
      forest->second.bind(*cell, queue);
      bound.emplace_back(&forest->second, *cell);
    } else if (forest->second.cell(*owner).owner != queue) {
      break;
    }
    inside_[j][i] = true;
    inside += job.held[i].gpus;
  }
  if (inside >= job.min) return;
  inside_[j].assign(job.held.size(), false);
  for (const auto& [forest, cell] : bound) forest->unbind(cell);
}

// The narrowest that the queue may bind; none: there is none.
std::optional<Number> Cells::cell_around(const CellForest& forest, NodeIndex node,
                                         QueueIndex queue) {
  for (std::size_t level = 0; level < forest.count_levels(); ++level) {
    const auto cell = forest.at(node, level);
    if (cell && forest.may_bind(*cell, queue)) return cell;
  }
  return std::nullopt;
}

void Cells::bind_for(JobIndex j, std::size_t i) {
  const Held& held = problem_.job(j).held[i];
  const auto& [type, node] = problem_.held_at(j)[i];
  const auto level = find_level(held.cell);
  const auto forest = forests_.find(type);
  if (!held.stays() || !node || !level || forest == forests_.end()) return;
  const auto cell = forest->second.at(*node, *level);
  const QueueIndex queue = problem_.queue_of(j);
  if (!cell) return;
  if (forest->second.cell(*cell).owner != queue) {
    if (!forest->second.may_bind(*cell, queue)) return;
    forest->second.bind(*cell, queue);
  }
  inside_[j][i] = true;
}

// The last queue that has a cell left of the level that lacks gets one with bad nodes: the one
// where most are well.
void Cells::doom(CellForest& forest) {
  while (const auto level = forest.lacks()) {
    const auto queue = std::ranges::find_if(by_age_.rbegin(), by_age_.rend(), [&](QueueIndex one) {
      return forest.claim(one, *level) > 0;
    });
    CHECK(queue != by_age_.rend());
    std::optional<Number> best;
    for (Number c = 0; c < forest.end(); ++c) {
      const auto& cell = forest.cell(c);
      if (cell.level != *level || cell.closed_below == 0 || forest.owner_above(c)) continue;
      if (cell.closed_below != cell.taken_below) continue;  // of somebody in part
      if (!best || cell.closed_below < forest.cell(*best).closed_below) best = c;
    }
    if (!best) {
      forest.add_claim(*queue, *level, -1);
      continue;
    }
    forest.open_below(*best);
    forest.bind(*best, *queue);
  }
}

std::optional<std::vector<Cells::Place>> Cells::place(const Demand& demand) {
  const auto found = forests_.find(demand.type);
  if (found == forests_.end()) return std::nullopt;
  CellForest& forest = found->second;
  Table<NodeIndex, std::int64_t> whole = demand.fits;
  for (std::int64_t& fits : whole) fits = fits >= demand.pods ? demand.pods : 0;
  std::vector<CellGang> ways = {{forest, demand, whole, false}};
  if (!demand.on_one_node)
    for (const bool tight : {false, true}) ways.emplace_back(forest, demand, demand.fits, tight);
  for (CellGang& way : ways) {
    if (!way.run()) continue;
    std::vector<Place> places;
    for (const auto& [node, level] : way.taken()) places.push_back({node, levels_[level]});
    return places;
  }
  return std::nullopt;
}

std::vector<NodeIndex> Cells::set_aside(const Table<NodeIndex, Gpus>& costs) const {
  std::vector<NodeIndex> nodes;
  for (auto [type, forest] : forests_) {
    for (std::size_t level = forest.count_levels(); level-- > 0;) {
      std::vector<std::tuple<Gpus, std::size_t, Number>> free;
      for (Number c = 0; c < forest.end(); ++c) {
        if (forest.cell(c).level != level || !forest.is_free(c)) continue;
        Gpus cost = 0;
        for (const NodeIndex node : forest.cell(c).nodes) cost += costs[node];
        free.emplace_back(cost, forest.cell(forest.whole_of(c)).level, c);
      }
      std::ranges::sort(free);
      auto next = free.begin();
      for (const QueueIndex queue : by_age_) {
        for (; next != free.end() && forest.claim(queue, level) > 0; ++next) {
          const Number c = std::get<Number>(*next);
          if (!forest.may_bind(c, queue)) continue;
          forest.bind(c, queue);
          nodes.insert(nodes.end(), forest.cell(c).nodes.begin(), forest.cell(c).nodes.end());
        }
      }
    }
  }
  return nodes;
}

}  // namespace rubato::sched
