#include "scheduler/policy/crius.h"

#include "common/check.h"
#include "scheduler/perf/goodput_table.h"
#include "scheduler/perf/type_ratios.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace rubato::sched {
namespace {

struct Cell {
  TypeIndex type;
  Gpus gpus = 0;
  double worth = 0;
};

struct JobCells {
  JobIndex index;
  std::vector<Cell> cells;    // of no goodput none
  std::optional<Cell> cell;   // none: it waits
  bool keeps = false;         // it has had its cell for a short while only, or must not change now
  bool is_exchanged = false;  // for the cell of another one
};

std::set<Gpus> sizes_of(const Job& job, Gpus most) {
  std::set<Gpus> sizes;
  const auto add = [&](std::optional<Gpus> size) {
    if (size && *size <= most) sizes.insert(*size);
  };
  add(size_at_least(job, job.min));
  add(size_at_most(job, effective_gpus(job)));
  for (Gpus n = 1; n <= std::min(most, job.max) && n > 0; n *= 2)
    if (size_at_least(job, n) == n) add(n);
  return sizes;
}

// Its goodput at its minimum, by type; 0: not known.
TypeRatios::ByGpuType known_at_minimum(const Problem& problem, JobIndex j) {
  const Job& job = problem.job(j);
  TypeRatios::ByGpuType known(problem.count_types(), 0);
  for (const TypeIndex type : problem.group(j).types)
    if (const GoodputTable table(job, problem.name(type)); table.is_known())
      known[type.value] = table.at(job.min, 0);
  return known;
}

TypeRatios ratios_of(const Problem& problem) {
  TypeRatios ratios(problem.count_types());
  for (JobIndex j; j < problem.end_of_jobs(); ++j) ratios.add(known_at_minimum(problem, j));
  return ratios;
}

// On a type where nothing is known of it a job is as much faster or slower, at any size, as others
// are.
std::vector<Cell> cells_of(const Problem& problem, JobIndex j, const TypeRatios& ratios,
                           RoomByType& room) {
  const Job& job = problem.job(j);
  const Gpus least = size_at_least(job, job.min).value_or(0);
  const TypeRatios::ByGpuType known = known_at_minimum(problem, j);
  const TypeRatios::ByGpuType guessed = ratios.speeds_of(known);
  const auto model = std::ranges::max_element(known) - known.begin();
  std::vector<Cell> cells;
  double most = 0;
  for (const TypeIndex type : problem.group(j).types) {
    const bool is_known = known[type.value] > 0;
    const TypeIndex as = is_known ? type : TypeIndex{static_cast<std::uint32_t>(model)};
    const GoodputTable table(job, problem.name(as));
    const double factor = is_known ? 1 : guessed[type.value] / table.at(job.min, 0);
    const Gpus tried = std::max(table.most(), least);
    for (const Gpus gpus : sizes_of(job, std::min(tried, room.most_to_try(j, type)))) {
      cells.push_back({type, gpus, factor * table.at(gpus, 0)});
      most = std::max(most, cells.back().worth);
    }
  }
  for (Cell& cell : cells) cell.worth *= job.weight / most;
  std::erase_if(cells, [](const Cell& cell) { return !(cell.worth > 0); });
  return cells;
}

// What nodes have once those have left that are leaving.
Table<NodeIndex, Resources> free_once_left(const Problem& problem) {
  Table<NodeIndex, Resources> free = free_on_nodes(problem);
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    for (std::size_t i = 0; i < job.held.size(); ++i) {
      const Held& pod = job.held[i];
      const auto node = problem.held_at(j)[i].node;
      if (node && !pod.lost && pod.leaving) free[*node] += job.per_pod;
    }
  }
  return free;
}

class Search {
 public:
  Search(const Problem& problem, double least_gain, double keep_ms)
      : problem_(problem),
        room_(problem),
        free_(problem, free_once_left(problem)),
        least_gain_(least_gain) {
    const auto now = static_cast<double>(problem.state().now_ms);
    const TypeRatios ratios = ratios_of(problem);
    RoomByType room_by_type(problem);
    const auto is_new = [&](JobIndex j) { return problem.job(j).attained_gpu_ms == 0; };
    for (const JobIndex j : order_by(problem, is_new)) {
      order_.push_back(j);
      if (!problem.takes_part(j)) continue;
      const Job& job = problem.job(j);
      JobCells one{.index = j, .cells = cells_of(problem, j, ratios, room_by_type)};
      const auto size = size_at_most(job, effective_gpus(job));
      if (const auto type = problem.type_held(j); type && size) {
        const auto same = [&](const Cell& c) { return c.type == *type && c.gpus == *size; };
        const auto found = std::ranges::find_if(one.cells, same);
        one.cell = found != one.cells.end() ? *found : Cell{*type, *size, 0};
        one.keeps = !job.settled || now - static_cast<double>(job.allocated_ms) < keep_ms;
      }
      all_.push_back(std::move(one));
    }
    for (const JobCells& one : all_)
      if (one.cell && !room_.take(one.index, one.cell->type, one.cell->gpus))
        room_overdrawn_ = true;
  }

  void start(bool searches) {
    std::size_t searched = 0;
    for (JobCells& one : all_) {
      if (one.cell) continue;
      const auto fits = best_with_room(one);
      const bool looks = searches && !room_overdrawn_ && searched++ < Crius::kSearched;
      if (looks && exchange(one, fits ? fits->worth : 0)) continue;
      if (fits) take(one, *fits);
    }
  }

  // While somebody gains.
  void grow() {
    while (true) {
      JobCells* gains = nullptr;
      std::optional<Cell> to;
      double most = 0;
      for (JobCells& one : all_) {
        if (!one.cell || one.keeps) continue;
        const double least = runs(one) ? one.cell->worth * (1 + least_gain_) : one.cell->worth;
        for (const Cell& cell : one.cells) {
          const double gain = cell.worth - one.cell->worth;
          if (cell.worth <= least || gain <= most || !has_room(one, cell) || !may_move(one, cell))
            continue;
          most = gain;
          gains = &one;
          to = cell;
        }
      }
      if (gains == nullptr) return;
      give_back(*gains);
      take(*gains, *to);
      gains->keeps = true;  // once a round
    }
  }

  Targets targets() && {
    const std::size_t count = problem_.state().jobs.size();
    Targets targets{.order = std::move(order_),
                    .sizes = std::vector<Gpus>(count, 0),
                    .sizes_hold = true,
                    .types = std::vector<std::optional<TypeIndex>>(count),
                    .types_hold = true};
    const bool some_leave = std::ranges::any_of(problem_.state().jobs, [](const Job& job) {
      return std::ranges::any_of(job.held, &Held::leaving);
    });
    for (const JobCells& one : all_) {
      if (!one.cell) continue;
      targets.sizes[one.index.value] = one.cell->gpus;
      const bool waits = some_leave && free_.most(one.index, one.cell->type) >= one.cell->gpus;
      if (one.is_exchanged || waits) {
        targets.starts.resize(count, 0);
        targets.starts[one.index.value] = one.cell->gpus;
      }
      targets.types[one.index.value] = one.cell->type;
    }
    return targets;
  }

 private:
  // With its own GPUs, if they are of that type.
  bool has_room(const JobCells& one, const Cell& cell) const {
    const Gpus own = one.cell && one.cell->type == cell.type ? one.cell->gpus : 0;
    return room_.left_for(one.index, cell.type) >= cell.gpus - own;
  }
  bool runs(const JobCells& one) const { return effective_gpus(problem_.job(one.index)) > 0; }
  // Who runs is stopped to change its type: nodes must have room for it there, not types alone.
  bool may_move(const JobCells& one, const Cell& cell) {
    return !runs(one) || cell.type == problem_.type_held(one.index) ||
           free_.most(one.index, cell.type) >= cell.gpus;
  }
  void take(JobCells& one, const Cell& cell) {
    CHECK(room_.take(one.index, cell.type, cell.gpus));
    one.cell = cell;
  }
  void give_back(JobCells& one) {
    room_.give_back(one.index, one.cell->type, one.cell->gpus);
    one.cell.reset();
  }

  std::optional<Cell> best_with_room(const JobCells& one) const {
    std::optional<Cell> best;
    for (const Cell& cell : one.cells)
      if (has_room(one, cell) && (!best || cell.worth > best->worth)) best = cell;
    return best;
  }

  // … worth more than that, on nodes that have room for it once another job has left.
  std::optional<Cell> best_without(JobIndex leaver, const JobCells& one, double least) {
    std::optional<Cell> best;
    for (const Cell& cell : one.cells) {
      if (cell.worth <= least || !has_room(one, cell) ||
          free_.most_without(leaver, one.index, cell.type) < cell.gpus)
        continue;
      best = cell;
      least = cell.worth;
    }
    return best;
  }

  // The job gets a cell, and one that has one another, if both together are worth more than what
  // the first would get without.
  bool exchange(JobCells& wanting, double least) {
    JobCells* other = nullptr;
    std::optional<Cell> others, own;
    double most = least;
    for (JobCells& one : all_) {
      if (!one.cell || one.keeps || &one == &wanting || one.cell->worth <= 0) continue;
      const Cell before = *one.cell;
      give_back(one);
      for (const Cell& cell : one.cells) {
        const double loss = before.worth - cell.worth;
        if (loss < 0 || (cell.type == before.type && cell.gpus >= before.gpus) ||
            !has_room(one, cell) || !may_move(one, cell))
          continue;
        take(one, cell);
        if (const auto found = best_without(one.index, wanting, most + loss + kLeastExchange)) {
          most = found->worth - loss;
          other = &one;
          others = cell;
          own = found;
        }
        give_back(one);
      }
      take(one, before);
    }
    if (other == nullptr) return false;
    give_back(*other);
    take(*other, *others);
    other->keeps = true;
    take(wanting, *own);
    wanting.is_exchanged = true;
    return true;
  }

  static constexpr double kLeastExchange = 1e-9;  // no change for nothing

  const Problem& problem_;
  Room room_;
  RoomByType free_;              // what nobody holds, or is leaving
  bool room_overdrawn_ = false;  // jobs hold what no longer counts: nothing is exchanged
  double least_gain_;
  std::vector<JobIndex> order_;
  std::vector<JobCells> all_;  // in order
};

}  // namespace

Descriptor Crius::describe() {
  return {.name = "crius",
          .about = "cells (GPU type and count, at the best plan there), exchanged while all gain",
          .rule =
              "A cell is a number of GPUs of one type; it is worth to a job its goodput there over "
              "that of the job's best cell. Waiting jobs, those that have run first, by arrival, "
              "get the cell with room that is worth most; or, where the sum of all worths is "
              "larger so, a better one for which a running job takes a smaller cell or one of "
              "another type, if nodes have room for both. What is left goes, one change at a time, "
              "to whoever gains most worth. A running job changes its cell only for `leastGain`, "
              "and after `keepSeconds`. Nobody is stopped for another one.",
          .choose =
              "Where jobs are trained under several parallel plans on several GPU types and the "
              "throughput of the whole cluster counts. It needs goodput or throughput measured on "
              "sizes and types. Large jobs may starve behind a stream of small ones.",
          .source =
              "Xue et al., arXiv 2403.16125. *Reconstruction* from the abstract's rules: goodput "
              "tables stand for its estimates of a cell, a search of one exchange for its search, "
              "and its published results are *unverified* here",
          .parameters = {{.name = "leastGain",
                          .least = 0,
                          .most = 100,
                          .standard = 0.1,
                          .about = "a running job changes its cell for this part more worth"},
                         {.name = "keepSeconds",
                          .least = 0,
                          .most = 1e7,
                          .standard = 600,
                          .unit = "s",
                          .about = "… after so long with its cell"},
                         {.name = "exchange",
                          .least = 0,
                          .most = 1,
                          .standard = 1,
                          .about = "0: running jobs change nothing for those that wait",
                          .is_whole = true}},
          .elastic = true,
          .timed = true,
          .uses_throughput = true,
          .uses_goodput = true};
}

Crius::Crius(const std::vector<double>& parameters)
    : least_gain_(parameters.at(0)),
      keep_ms_(parameters.at(1) * 1000),
      searches_(parameters.at(2) >= 0.5) {}

Targets Crius::decide(const Problem& problem) const {
  Search search(problem, least_gain_, keep_ms_);
  search.start(searches_);
  search.grow();
  return std::move(search).targets();
}

}  // namespace rubato::sched
