// Cells: whole pieces of the cluster that queues are guaranteed (HiveD, OSDI'20, §3 and §4). A
// guarantee of GPUs says how many a queue gets, not how near to each other they are: jobs that must
// be on one node, or in one rack, wait while the GPUs of their queue are in splinters. A guarantee
// of cells says both, so a queue inside its cells is served as if it had these nodes for its own.
//
//   1. Of each GPU type that a queue has cells of, nodes and topology domains are a forest of
//      cells. A node is one if it has as many GPUs as most nodes of its type; a domain is one if
//      all its children are cells, as many as in most domains of its level. Anything else is in no
//      cell.
//   2. Queues have cells by number: which ones is decided (a cell is *bound*) when a job of the
//      queue needs one, and until no pod in it is left (Held::cell is all that is remembered). A
//      job that started elsewhere is in a cell, too, once its queue has one left that it is on.
//   3. The invariant: at every level, the cells that queues have and that are not bound can be had
//      by splitting free cells. Queues whose cells break it, all cells free, are refused, in the
//      order in which they were made. A binding that would break it is not made.
//   4. A node that takes no pods now is bound to nobody. Where that leaves too few cells, the last
//      queues that have some left are bound to the cells with bad nodes (*doomed*), so that these
//      count against one queue and not against all.
//
// A job inside its queue's cells is given the whole of its minimum there; what else runs on these
// nodes leaves (scheduler/session/session_cells.cc). Pieces smaller than a node are no cells of
// their own: jobs of one queue share its nodes.
//
// A placement is found whenever there is one for a job that may use all nodes of the type. Where
// selectors leave it few nodes of several levels, splits are chosen greedily and it may be missed.
//
// Cost: made in O(N L + P L) for N nodes, L levels and P pods in cells; a job's cells in O(N L) a
// cell. Pure; one round, one thread.
#pragma once

#include "scheduler/model/confinement.h"
#include "scheduler/model/problem.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::sched {

// The cells of one GPU type.
class CellForest {
 public:
  using Number = std::uint32_t;  // of a cell
  struct Cell {
    std::size_t level = 0;            // 0: a node
    std::optional<Number> parent;     // none: it is part of no larger one
    std::vector<NodeIndex> nodes;     // all below it
    std::optional<QueueIndex> owner;  // it is bound
    bool is_bad = false;              // a node that cannot be given whole now
    bool is_closed = false;           // … and to nobody: free cells are without it
    std::int64_t taken_below = 0;     // bound or closed cells, itself included
    std::int64_t closed_below = 0;
  };
  CellForest(const Problem& problem, TypeIndex type);

  std::size_t count_levels() const { return fan_out_.size(); }
  Number end() const { return static_cast<Number>(cells_.size()); }
  const Cell& cell(Number cell) const { return cells_[cell]; }
  // That a node is in; none: it is in no cell of that level.
  std::optional<Number> at(NodeIndex node, std::size_t level) const;
  // Nothing of it, and nothing that it is part of, is bound or closed.
  bool is_free(Number cell) const { return cells_[cell].taken_below == 0 && !owner_above(cell); }
  // The largest free cell that it is part of. It is free.
  Number whole_of(Number cell) const;
  // The bound cell that it is, or is part of.
  std::optional<Number> owner_above(Number cell) const;

  // What queues have and is not bound.
  void add_claim(QueueIndex queue, std::size_t level, std::int64_t more);
  std::int64_t claim(QueueIndex queue, std::size_t level) const;

  // The level at which the invariant is broken; none: it holds.
  std::optional<std::size_t> lacks() const { return lacks(free_, claimed_); }
  // Whether it holds once a queue has bound this free cell, of which it has one.
  bool holds_with(Number bound) const;
  // It is free, the queue has one of its level that is not bound, and the invariant leaves it.
  bool may_bind(Number cell, QueueIndex queue) const;

  void bind(Number cell, QueueIndex queue);  // a free one, of which the queue has one
  void unbind(Number cell);
  void close_bad_nodes();        // those that are free
  void open_below(Number cell);  // what was closed

 private:
  using Counts = std::vector<std::int64_t>;  // by level
  std::optional<std::size_t> lacks(const Counts& free, const Counts& claimed) const;
  void add_nodes(const Problem& problem, TypeIndex type);
  void add_domains(const Problem& problem, std::size_t topology_level);
  Number add_cell(std::size_t level, std::vector<NodeIndex> nodes);
  void take(Number free);
  void release(Number taken);
  void count_split(Number cell, std::int64_t times, Counts& free) const;

  std::vector<Cell> cells_;
  std::vector<std::int64_t> fan_out_;  // by level: children of a cell
  std::map<NodeIndex, Number> of_node_;
  Counts free_;  // that are part of no larger free one
  Counts claimed_;
  std::map<std::pair<QueueIndex, std::size_t>, std::int64_t> claims_;
};

// All cells in one round.
class Cells {
 public:
  explicit Cells(const Problem& problem);

  // Whether any queue has some; where none has, nothing else is to be asked.
  bool exist() const { return !forests_.empty(); }
  bool has_cells(QueueIndex queue) const { return !types_of(queue).empty(); }
  // GPU types that the queue has cells of; empty: it has none, or they were refused.
  const std::vector<TypeIndex>& types_of(QueueIndex queue) const { return types_of_[queue]; }
  // Plan::refused_cells.
  const std::map<std::string, std::string>& refusals() const { return refusals_; }
  // The most GPUs of one type that it has in them.
  Gpus most_of(QueueIndex queue) const;
  // … of this type, for a job like this one, whoever else is there: no more than that fits.
  Gpus most_of(QueueIndex queue, TypeIndex type, const Job& job) const;
  // The pod, by its position in Job::held, is in a cell of its queue.
  bool is_inside(JobIndex job, std::size_t held) const;

  // A gang that is to be in the cells of its queue.
  struct Demand {
    QueueIndex queue;
    TypeIndex type;
    std::int64_t pods = 0;
    bool on_one_node = false;
    // By node: pods that could be there if those left who are in no cell; what these hold.
    Table<NodeIndex, std::int64_t> fits;
    const Table<NodeIndex, Gpus>* costs = nullptr;
    // By node: who has pods there in a cell, as numbers in the order of their ids, in order.
    const Table<NodeIndex, std::vector<std::size_t>>* inside = nullptr;
  };
  struct Place {
    NodeIndex node;
    std::string level;  // Held::cell
  };
  // One a pod; what they need is bound from then on. None: there is no room, and nothing is bound.
  std::optional<std::vector<Place>> place(const Demand& demand);

  // Nodes of the cells that would be bound first for what queues have left.
  std::vector<NodeIndex> set_aside(const Table<NodeIndex, Gpus>& costs) const;

 private:
  void admit_queues();
  std::string why_refused(const Queue& queue);
  void bind_what_is_held();
  void bind_for(JobIndex job, std::size_t held);
  void adopt(JobIndex job);
  static std::optional<CellForest::Number> cell_around(const CellForest& forest, NodeIndex node,
                                                       QueueIndex queue);
  void doom(CellForest& forest);
  std::optional<std::size_t> find_level(const std::string& name) const;

  const Problem& problem_;
  std::vector<std::string> levels_;  // kNodeLevel, then those of topology, the narrowest first
  std::map<TypeIndex, CellForest> forests_;
  Table<QueueIndex, std::vector<TypeIndex>> types_of_;
  std::vector<QueueIndex> by_age_;  // that were admitted
  std::map<std::string, std::string> refusals_;
  Table<JobIndex, std::vector<bool>> inside_;
};

}  // namespace rubato::sched
