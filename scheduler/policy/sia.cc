#include "scheduler/policy/sia.h"

#include "scheduler/perf/goodput_table.h"
#include "scheduler/perf/type_ratios.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/sia_places.h"
#include "scheduler/solver/choices.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kMostCost = 3000;    // as in the artifact
constexpr double kStaysFirst = 1e-6;  // among equals

struct Configuration {
  TypeIndex type;
  Gpus gpus = 0;
  std::int64_t nodes = 1;
  bool stays = false;  // what it has, where it has it
  double goodput = 0;
};

// What a job of the program has now, as far as that is a configuration.
std::optional<Configuration> present(const Problem& problem, JobIndex j) {
  const Job& job = problem.job(j);
  const Gpus now = effective_gpus(job);
  auto nodes = nodes_held(problem, j);
  const auto type = problem.type_held(j);
  if (!nodes || !type || now < job.min || now > job.max) return std::nullopt;
  for (const NodeIndex n : *nodes)
    if (problem.type_of(n) != *type) return std::nullopt;
  nodes->erase(std::ranges::unique(*nodes).begin(), nodes->end());
  return Configuration{.type = *type, .gpus = now, .nodes = std::ssize(*nodes), .stays = true};
}

// A job's goodput on all types.
class TypedGoodput {
 public:
  TypedGoodput(const Problem& problem, JobIndex j, Gpus least) {
    for (TypeIndex type; type.value < problem.count_types(); ++type) {
      tables_.emplace_back(problem.job(j), problem.name(type));
      const GoodputTable& table = tables_.back();
      at_least_.push_back(table.is_known() ? table.at(least, 1) : 0);
      if (table.is_known()) most_ = std::max(most_, table.most());
      if (!best_ || at_least_.back() > at_least_[best_->value]) best_ = type;
    }
    if (best_ && at_least_[best_->value] == 0) best_.reset();
  }

  const TypeRatios::ByGpuType& measured() const { return at_least_; }
  void guess(const TypeRatios& ratios) { guessed_ = ratios.speeds_of(at_least_); }

  // 0: it is not to be tried.
  double at(TypeIndex type, Gpus gpus, std::int64_t nodes) const {
    if (!best_) return 1;
    if (at_least_[type.value] > 0) return tables_[type.value].at(gpus, nodes);
    return tables_[best_->value].at(gpus, nodes) * guessed_[type.value] / at_least_[best_->value];
  }
  // The largest size to be tried there; 0: nothing was measured.
  Gpus most(TypeIndex type) const {
    return at_least_[type.value] > 0 ? tables_[type.value].most() : most_;
  }

 private:
  std::vector<GoodputTable> tables_;
  TypeRatios::ByGpuType at_least_;  // at its minimum; 0: not measured there
  TypeRatios::ByGpuType guessed_;
  std::optional<TypeIndex> best_;  // of those that were measured
  Gpus most_ = 0;
};

// Of the program: it may have another configuration than it has.
struct Contender {
  JobIndex job;
  Gpus least = 0;
  std::optional<Configuration> present;
  TypedGoodput goodput;
  std::vector<Configuration> configurations;
};

// What all jobs that are not in the program leave, on nodes and of queues' quotas.
struct SiaRoom {
  Table<NodeIndex, Resources> on_nodes;
  QuotaBook quota;
};

class SiaRound {
 public:
  SiaRound(const Problem& problem, const Sia::Settings& settings)
      : problem_(problem),
        settings_(settings),
        largest_(largest_node_by_type(problem)),
        room_{room_on_nodes(problem), QuotaBook(problem)} {
    for (const auto& [name, queue] : problem.state().queues)
      for (const auto& [type, gpus] : queue.held_by_leavers)
        room_.quota.take(problem.queue_named(name), problem.type_named(type), gpus);
    const auto attained = [&](JobIndex j) { return problem.job(j).attained_gpu_ms; };
    for (const JobIndex j : order_by(problem, attained)) add(j);
    TypeRatios ratios(problem.count_types());
    for (const Contender& one : contenders_) ratios.add(one.goodput.measured());
    RoomByType room(problem, room_.on_nodes);
    for (Contender& one : contenders_) {
      one.goodput.guess(ratios);
      for (const auto& [type, most] : problem.group(one.job).capacity_now.by_type())
        if (room.most(one.job, type) > 0) add_configurations(one, type, most);
      if (!one.present) continue;
      Configuration& has = *one.present;
      has.goodput = one.goodput.at(has.type, has.gpus, has.nodes);
      if (has.goodput > 0) one.configurations.push_back(*one.present);
    }
    make_program();
  }

  Targets decide() const {
    const std::size_t jobs = problem_.state().jobs.size();
    Targets targets{.displaces = Displaces::kLaterInOrder, .sizes_hold = true};
    targets.sizes.assign(jobs, 0);
    targets.places.assign(jobs, std::nullopt);
    targets.types.assign(jobs, std::nullopt);
    for (JobIndex j; j < problem_.end_of_jobs(); ++j)
      if (!problem_.job(j).settled) targets.sizes[j.value] = effective_gpus(problem_.job(j));
    const std::vector<ToPlace> all = choose();
    auto places = place_configurations(problem_, all, room_.on_nodes);
    for (std::size_t i = 0; i < all.size(); ++i) {
      targets.sizes[all[i].job.value] = all[i].gpus;
      targets.types[all[i].job.value] = all[i].type;
      targets.places[all[i].job.value] = std::move(places[i]);
    }
    // Whoever is left out displaces nobody.
    targets.order = order_by(problem_, [&](JobIndex j) {
      return std::pair(targets.sizes[j.value] == 0, problem_.job(j).attained_gpu_ms);
    });
    return targets;
  }

 private:
  void add(JobIndex j) {
    const Job& job = problem_.job(j);
    const auto least = size_at_least(job, job.min);
    if (problem_.takes_part(j) && job.settled && least) {
      contenders_.push_back({.job = j,
                             .least = *least,
                             .present = present(problem_, j),
                             .goodput = TypedGoodput(problem_, j, *least),
                             .configurations = {}});
      return;
    }
    for (const Held& pod : job.held) {
      if (!pod.stays()) continue;
      room_.quota.take(problem_.queue_of(j), problem_.type_named(pod.gpu_type), pod.gpus);
      const auto node = problem_.find_node(pod.node);
      if (node && problem_.takes_part(j)) room_.on_nodes[*node] -= job.per_pod;
    }
  }

  // Those of a higher priority choose first.
  std::vector<ToPlace> choose() const {
    std::vector<ToPlace> all;
    std::vector<double> left = program_.capacities;
    const auto priority = [&](std::size_t i) { return problem_.job(contenders_[i].job).priority; };
    for (std::size_t from = 0, to = 0; from < contenders_.size(); from = to) {
      ChoiceProgram part{.capacities = left, .groups = {}};
      for (to = from; to < contenders_.size() && priority(to) == priority(from); ++to)
        part.groups.push_back(program_.groups[to]);
      const Chosen chosen = least_cost_choices(part);
      for (std::size_t i = from; i < to; ++i) {
        const auto& choice = chosen.choices[i - from];
        if (!choice) continue;
        for (const auto& [capacity, amount] : program_.groups[i].choices[*choice].uses)
          left[capacity] = std::max(left[capacity] - amount, 0.0);
        const Configuration& has = contenders_[i].configurations[*choice];
        all.push_back({contenders_[i].job, has.type, has.gpus, has.stays});
      }
    }
    return all;
  }

  std::int64_t nodes_for(TypeIndex type, Gpus gpus) const {
    return (gpus + largest_[type] - 1) / largest_[type];
  }

  // Those of a type but what it has; up to `most` GPUs.
  void add_configurations(Contender& one, TypeIndex type, Gpus most) const {
    const Job& job = problem_.job(one.job);
    const Gpus whole = largest_[type];
    std::set<Gpus> sizes = {one.least};
    for (Gpus part = 1; part < whole; part *= 2) sizes.insert(part);
    for (std::int64_t nodes = 1; nodes <= Sia::kWholeNodesMost; ++nodes)
      sizes.insert(nodes * whole);
    const bool is_here = one.present && one.present->type == type;
    const Gpus known = std::max(one.goodput.most(type), is_here ? one.present->gpus : 0);
    for (const Gpus gpus : sizes) {
      if (gpus > most || (gpus > known && gpus != one.least)) continue;
      if (size_at_least(job, gpus) != gpus) continue;
      const std::int64_t nodes = nodes_for(type, gpus);
      if (is_here && one.present->gpus == gpus && one.present->nodes <= nodes) continue;
      const double goodput = one.goodput.at(type, gpus, nodes);
      if (goodput > 0) one.configurations.push_back({type, gpus, nodes, false, goodput});
    }
  }

  double restart_factor(const Job& job) const {
    const double age_s = static_cast<double>(problem_.state().now_ms) / 1000 - job.queued_at;
    const double lost_s = static_cast<double>(job.restarts) * settings_.restart_s;
    if (age_s < settings_.restart_s) return 1;
    return age_s + settings_.restart_s > 0
               ? std::max(age_s - lost_s, 0.0) / (age_s + settings_.restart_s)
               : 1;
  }

  void make_program() {
    for (TypeIndex type; type.value < problem_.count_types(); ++type)
      program_.capacities.push_back(0);
    for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
      if (problem_.node(n).schedulable)
        program_.capacities[problem_.type_of(n).value] +=
            static_cast<double>(std::max<Gpus>(room_.on_nodes[n].gpus, 0));
    for (const Contender& one : contenders_) program_.groups.push_back(group_of(one));
  }

  ChoiceGroup group_of(const Contender& one) {
    const Job& job = problem_.job(one.job);
    double least = 0;
    for (const Configuration& each : one.configurations)
      if (least == 0 || each.goodput < least) least = each.goodput;
    ChoiceGroup group{.cost_of_none = job.weight * settings_.incentive, .choices = {}};
    for (const Configuration& each : one.configurations) {
      const double factor = one.present && !each.stays ? restart_factor(job) : 1;
      const double goodput = each.goodput / least * static_cast<double>(one.least) * factor;
      const double cost = std::min(std::pow(goodput, settings_.power), kMostCost);
      group.choices.push_back({.cost = job.weight * cost * (each.stays ? 1 - kStaysFirst : 1),
                               .uses = uses_of(one.job, each)});
    }
    return group;
  }

  std::vector<CapacityUse> uses_of(JobIndex j, const Configuration& has) {
    std::vector<CapacityUse> uses;
    const Gpus of_nodes = has.stays ? gpus_on_open_nodes(j) : has.gpus;
    if (of_nodes > 0) uses.push_back({has.type.value, static_cast<double>(of_nodes)});
    const auto use_quota = [&](QueueIndex queue, std::uint32_t number, Gpus left) {
      if (left == kNoLimit) return;
      const auto [at, is_new] =
          quota_rows_.try_emplace({queue.value, number}, program_.capacities.size());
      if (is_new) program_.capacities.push_back(static_cast<double>(left));
      uses.push_back({at->second, static_cast<double>(has.gpus)});
    };
    for (std::optional<QueueIndex> q = problem_.queue_of(j); q; q = problem_.parent_of(*q)) {
      use_quota(*q, 0, room_.quota.own_room(*q));
      use_quota(*q, has.type.value + 1, room_.quota.own_room(*q, has.type));
    }
    return uses;
  }

  // What it holds on others is not in the capacity.
  Gpus gpus_on_open_nodes(JobIndex j) const {
    Gpus gpus = 0;
    for (const NodeIndex n : nodes_held(problem_, j).value_or(std::vector<NodeIndex>{}))
      if (problem_.node(n).schedulable) gpus += problem_.job(j).per_pod.gpus;
    return gpus;
  }

  const Problem& problem_;
  const Sia::Settings& settings_;
  Table<TypeIndex, Gpus> largest_;
  SiaRoom room_;
  std::vector<Contender> contenders_;
  ChoiceProgram program_;
  // By queue, and type + 1, or 0 for all types together.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> quota_rows_;
};

}  // namespace

Descriptor Sia::describe() {
  return {
      .name = "sia",
      .about = "GPUs of which type, and how many, by goodput and an integer program",
      .rule =
          "A configuration is GPUs of one type: a power of two within a node, or whole nodes. A "
          "job's goodput in each counts against that in its worst one; a change costs it the share "
          "of its life that it has spent, and would spend, in restarts. An integer program chooses "
          "configurations for which the sum of these goodputs, each to the power of `power`, is "
          "least, with `incentive` for each job that has none. Jobs are where their configuration "
          "is: what is less than a node on one node, more on whole nodes; who is elsewhere, or on "
          "another type, stops and starts there. A job without a configuration does not start. "
          "Jobs "
          "of a higher priority choose first; those that have had least GPU time are served first. "
          "A job gets at most as many GPUs as its goodput table has; "
          "without a table, twice as many as it was measured on. On a type on which it was not "
          "measured its goodput is guessed by how other jobs compare.",
      .choose =
          "Where there are several GPU types, jobs are elastic, their goodput is known (a table in "
          "the snapshot) or is their throughput, as with a fixed batch, and jobs are not many more "
          "than GPUs allow: in a crowd it gives two GPUs to some rather than one to each, and the "
          "others wait, some of them very long; a greater incentive lets more of them run. It "
          "looks at no work left. Each move is a restart, which it weighs by restartSeconds; with "
          "`preempt` 0 nobody moves. A job that runs and is left out keeps its minimum until "
          "another one's minimum needs it. Any job may starve in a crowd, large ones first.",
      .source =
          "Jayaram Subramanya et al., SOSP'23, section 3. *Reconstruction*: goodput on unseen "
          "types is guessed instead of profiled on one GPU, minimums and what jobs hold are "
          "configurations, too, powers are not rounded, and rounds are the platform's; pipelines "
          "of fixed stages are not known here. On Pollux's workloads its mean completion times are "
          "1 % below those of `pollux` at the lowest load and 24 % above at the highest; published "
          "are 5 % below, on workloads that are not here (benchmarks.md): *unverified*",
      .parameters = {{.name = "power",
                      .least = -10,
                      .most = -0.01,
                      .standard = -0.5,
                      .unit = "",
                      .about = "of goodputs in the sum; the lower, the fairer"},
                     {.name = "incentive",
                      .least = 0,
                      .most = 1000,
                      .standard = 1.1,
                      .unit = "",
                      .about = "what a job without a configuration counts in the sum"},
                     {.name = "restartSeconds",
                      .least = 0,
                      .most = 100'000,
                      .standard = 30,
                      .unit = "s",
                      .about = "what a change is taken to cost a job"}},
      .elastic = true,
      .timed = true,
      .uses_throughput = true,
      .uses_goodput = true};
}

Sia::Sia(const std::vector<double>& parameters)
    : settings_{.power = parameters.at(0),
                .incentive = parameters.at(1),
                .restart_s = parameters.at(2)} {}

Targets Sia::decide(const Problem& problem) const { return SiaRound(problem, settings_).decide(); }

}  // namespace rubato::sched
