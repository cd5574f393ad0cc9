#include "scheduler/policy/synergy.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/starts.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

CpuMemory for_gpus(const CpuMemory& per_gpu, Gpus gpus) {
  return {per_gpu.cpu * gpus, per_gpu.memory * gpus};
}

CpuMemory minus(const CpuMemory& from, const CpuMemory& what) {
  return {from.cpu - what.cpu, from.memory - what.memory};
}

CpuMemory least_of(const CpuMemory& a, const CpuMemory& b) {
  return {std::min(a.cpu, b.cpu), std::min(a.memory, b.memory)};
}

// Amounts as parts of what all nodes have together.
class Scarcity {
 public:
  explicit Scarcity(const ClusterState& state) {
    for (const Node& node : state.nodes) {
      if (!node.total) continue;
      cpu_ += static_cast<double>(node.total->cpu);
      memory_ += static_cast<double>(node.total->memory);
    }
  }
  double of(const CpuMemory& amount) const {
    return static_cast<double>(amount.cpu) / std::max(cpu_, 1.0) +
           static_cast<double>(amount.memory) / std::max(memory_, 1.0);
  }

 private:
  double cpu_ = 0, memory_ = 0;
};

// For each GPU: the least with which the job has a part `knee` of its best speed; none: not known.
std::optional<CpuMemory> demand_of(const Job& job, double knee, const Scarcity& scarcity) {
  double best = 0;
  for (const SensitivityPoint& point : job.sensitivity) best = std::max(best, point.part);
  std::optional<CpuMemory> least;
  for (const SensitivityPoint& point : job.sensitivity)
    if (point.part >= knee * best && (!least || scarcity.of(point.per_gpu) < scarcity.of(*least)))
      least = point.per_gpu;
  return least;
}

// What is left of the nodes whose CPU and memory are known, once each job there has its
// proportional share, or what it wants, where that is less.
class NodesLeft {
 public:
  NodesLeft(const ClusterState& state, double knee)
      : knee_(knee), scarcity_(state), nodes_(nodes_by_id(state)) {
    for (const Node& node : state.nodes)
      if (node.total) left_.emplace(node.id, *node.total);
  }

  struct Wish {
    CpuMemory base;    // for each GPU, which it has
    CpuMemory demand;  // at least `base`
  };
  // None, and nothing is taken: it holds nothing, or one of its nodes is not known, or more is held
  // there than it has.
  std::optional<Wish> settle(const Job& job, const GpusOnNodes& places) {
    const auto proportional = proportional_share(nodes_, places);
    if (!proportional) return std::nullopt;
    const CpuMemory demand = demand_of(job, knee_, scarcity_).value_or(*proportional);
    const Wish wish{least_of(demand, *proportional), demand};
    if (!fits(places, wish.base)) return std::nullopt;
    take(places, wish.base);
    return wish;
  }

  bool fits(const GpusOnNodes& places, const CpuMemory& per_gpu) const {
    return std::ranges::all_of(places, [&](const auto& place) {
      const CpuMemory& left = left_.at(place.first);
      return per_gpu.cpu <= left.cpu / place.second && per_gpu.memory <= left.memory / place.second;
    });
  }

  void take(const GpusOnNodes& places, const CpuMemory& per_gpu) {
    for (const auto& [node, gpus] : places)
      left_.at(node) = minus(left_.at(node), for_gpus(per_gpu, gpus));
  }

  std::optional<CpuMemory> demand(const Job& job) const { return demand_of(job, knee_, scarcity_); }
  // None: not known.
  std::optional<CpuMemory> on(const Node& node) const {
    const auto found = left_.find(node.id);
    return found == left_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  double knee_;
  Scarcity scarcity_;
  NodesById nodes_;
  std::map<NodeId, CpuMemory> left_;
};

GpusOnNodes pods_held(const Job& job) {
  GpusOnNodes places;
  if (!job.guest_of.empty()) return places;
  for (const Held& held : job.held)
    if (held.stays()) places[held.node] += held.gpus;
  return places;
}

// Jobs that start and fit on one node, the largest first, each on the node that its demand fills
// best.
class BestFit {
 public:
  BestFit(const Problem& problem, double knee) : problem_(problem), left_(problem.state(), knee) {
    for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
      room_.push_back(problem.node(n).free);
      room_[n].raise_to_zero();
    }
    for (const Job& job : problem.state().jobs) left_.settle(job, pods_held(job));
  }

  // None: no node of the type has room for all its pods.
  std::optional<std::vector<NodeIndex>> place(JobIndex j, TypeIndex type, Gpus gpus) {
    const Job& job = problem_.job(j);
    const std::int64_t pods = gpus / job.per_pod.gpus;
    const auto demand = left_.demand(job);
    std::optional<std::tuple<bool, double, NodeIndex>> best;
    for (const NodeIndex n : problem_.group(j).admitted) {
      if (problem_.type_of(n) != type || room_[n].copies_of(job.per_pod) < pods) continue;
      const auto rank = rank_of(n, gpus, demand);
      if (!best || rank < *best) best = rank;
    }
    if (!best) return std::nullopt;
    const NodeIndex n = std::get<NodeIndex>(*best);
    for (std::int64_t pod = 0; pod < pods; ++pod) room_[n] -= job.per_pod;
    const GpusOnNodes there{{problem_.node(n).id, gpus}};
    const auto wish = left_.settle(job, there);
    if (wish && left_.fits(there, minus(wish->demand, wish->base)))
      left_.take(there, minus(wish->demand, wish->base));
    return std::vector<NodeIndex>(static_cast<std::size_t>(pods), n);
  }

 private:
  // The least first: whether the demand does not fit, what it leaves, as parts of the node.
  std::tuple<bool, double, NodeIndex> rank_of(NodeIndex n, Gpus gpus,
                                              const std::optional<CpuMemory>& demand) const {
    const Node& node = problem_.node(n);
    const auto wanted = static_cast<double>(gpus);
    const auto part = [&](std::int64_t free, std::int64_t per_gpu, std::int64_t of) {
      return (static_cast<double>(free) - static_cast<double>(per_gpu) * wanted) /
             static_cast<double>(std::max<std::int64_t>(of, 1));
    };
    const double gpus_left = part(room_[n].gpus, 1, node.gpus_total);
    const auto left = left_.on(node);
    if (!left || !demand) return {false, gpus_left, n};
    const double cpu_left = part(left->cpu, demand->cpu, node.total->cpu);
    const double memory_left = part(left->memory, demand->memory, node.total->memory);
    if (cpu_left < 0 || memory_left < 0) return {true, gpus_left, n};
    return {false, gpus_left + cpu_left + memory_left, n};
  }

  const Problem& problem_;
  NodesLeft left_;
  Table<NodeIndex, Resources> room_;
};

struct Starting {
  JobIndex job;
  TypeIndex type;
  Gpus gpus = 0;
};

// Those for whom there are GPUs, in order; then by GPUs, the most first.
std::vector<Starting> who_starts(const Problem& problem, const std::vector<JobIndex>& order) {
  std::vector<Starting> some;
  Room room = Room::unheld(problem);
  for (const JobIndex j : order) {
    if (!may_start(problem, j)) continue;
    const auto types = types_with_room(problem, j, room);
    if (types.empty()) continue;
    some.push_back({j, types[0], *size_at_least(problem.job(j), problem.job(j).min)});
    room.take(j, types[0], some.back().gpus);
  }
  std::ranges::stable_sort(some, std::greater(), &Starting::gpus);
  return some;
}

}  // namespace

Descriptor Synergy::describe() {
  return {
      .name = "synergy",
      .about = "arrival order; CPU and memory of nodes go to the jobs that they make faster",
      .rule =
          "Jobs of one priority are served in order of arrival; one that does not fit is passed "
          "over, and nobody is preempted or moved. A job's demand for each GPU is the least CPU "
          "and memory with which it has a part `knee` of its best speed, as its sensitivity says; "
          "where that is not known, its proportional share: that of its GPUs in their node. Jobs "
          "that start and fit on one node go, the largest first, where their demand leaves least "
          "(best fit), else where they leave fewest GPUs. Each job has its proportional share, or "
          "its demand, if that is less; what is left of nodes raises jobs to their demand, the "
          "largest first, as far as that fits on all nodes of a job. This is done anew in each "
          "round: what a job has beyond its proportional share is taken back when somebody needs "
          "it for theirs. Jobs keep their minimums, and do not grow.",
      .choose =
          "Where some jobs need much CPU or memory to feed their GPUs (images, speech) and others "
          "little. Large jobs may starve.",
      .source =
          "Mohan et al., OSDI'22. *Reconstruction* of its heuristic TUNE over arrival order: the "
          "sensitivity is given, by whoever profiled it, and jobs stay where they started. Its "
          "published results are *unverified* here",
      .parameters = {{.name = "knee",
                      .least = 0,
                      .most = 1,
                      .standard = 0.95,
                      .about = "part of its best speed with which a job is content"}},
      .shares_cpu_memory = true};
}

Synergy::Synergy(const std::vector<double>& parameters) : knee_(parameters.at(0)) {}

Targets Synergy::decide(const Problem& problem) const {
  const ClusterState& state = problem.state();
  Targets targets{.order = order_by(problem, [](JobIndex) { return 0; }),
                  .displaces = Displaces::kNobody,
                  .sizes = held_or_minimum(state)};
  const bool is_known =
      std::ranges::any_of(state.nodes, [](const Node& node) { return node.total.has_value(); }) &&
      std::ranges::any_of(state.jobs, [](const Job& job) { return !job.sensitivity.empty(); });
  if (!is_known) return targets;
  BestFit fit(problem, knee_);
  targets.places.resize(state.jobs.size());
  for (const Starting& one : who_starts(problem, targets.order))
    targets.places[one.job.value] = fit.place(one.job, one.type, one.gpus);
  return targets;
}

std::optional<CpuMemoryShares> Synergy::share_cpu_memory(
    const ClusterState& state, const std::vector<GpusOnNodes>& places) const {
  struct Wanting {
    std::size_t job;
    Gpus gpus;
    NodesLeft::Wish wish;
  };
  NodesLeft left(state, knee_);
  std::vector<Wanting> wanting;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    Gpus gpus = 0;
    for (const auto& [node, here] : places[i]) gpus += here;
    if (const auto wish = left.settle(state.jobs[i], places[i]))
      wanting.push_back({i, gpus, *wish});
  }
  std::ranges::sort(wanting, {}, [&](const Wanting& one) {
    return std::pair<Gpus, const JobId&>(-one.gpus, state.jobs[one.job].id);
  });
  CpuMemoryShares shares;
  for (const auto& [job, gpus, wish] : wanting) {
    const CpuMemory more = minus(wish.demand, wish.base);
    const bool is_raised = left.fits(places[job], more);
    if (is_raised) left.take(places[job], more);
    shares.emplace(state.jobs[job].id, is_raised ? wish.demand : wish.base);
  }
  return shares;
}

}  // namespace rubato::sched
