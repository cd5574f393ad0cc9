#include "scheduler/policy/pollux.h"

#include "common/check.h"
#include "common/rng.h"
#include "scheduler/perf/goodput_table.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/solver/genetic_sizes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kMostValue = 1e6;
constexpr double kLeastValue = 1e-3;  // so that a job without GPUs has a finite score (artifact)
// What the search may cost, all generations together, in jobs that are scored or nodes that are
// looked at: what bounds its time where there are very many of them, or of sizes.
constexpr std::int64_t kWorkMost = 200'000'000;
constexpr std::int64_t kTriedSizes = 1'000'000;  // tried, of all jobs together, about
constexpr Gpus kDoublingLeast = 32;
constexpr Gpus kDoublingMost = 1024;

// All of one type.
struct Part {
  std::vector<NodeIndex> nodes;
  std::vector<Gpus> node_gpus;  // by position in `nodes`: for these jobs
  std::vector<JobIndex> jobs;
  std::vector<NodePlaces> held;  // as `jobs`
  Gpus gpus = 0;
  Gpus largest = 0;         // of its nodes
  bool has_places = false;  // the search says where its jobs are
};

std::int64_t nodes_for(const Part& part, Gpus gpus) {
  return part.largest > 0 ? (gpus + part.largest - 1) / part.largest : 1;
}

std::size_t position_of(const Part& part, NodeIndex node) {
  return static_cast<std::size_t>(std::ranges::lower_bound(part.nodes, node) - part.nodes.begin());
}

// Where it is; none: partly on nodes that are not the part's.
std::optional<NodePlaces> places_held(const Problem& problem, const Part& part, const Job& job) {
  std::map<std::size_t, Gpus> by_node;
  for (const Held& pod : job.held) {
    if (!pod.stays()) continue;
    const auto node = problem.find_node(pod.node);
    if (!node) return std::nullopt;
    const std::size_t n = position_of(part, *node);
    if (n >= part.nodes.size() || part.nodes[n] != *node) return std::nullopt;
    by_node[n] += pod.gpus;
  }
  return NodePlaces(by_node.begin(), by_node.end());
}

// The search says places where any job may be on any node, one pod a GPU, and nothing but GPUs runs
// out.
void find_places(const Problem& problem, const Table<NodeIndex, Resources>& room, Part& part) {
  Resources most{.gpus = 1};
  bool has_places = true;
  for (const JobIndex j : part.jobs) {
    const Job& job = problem.job(j);
    const auto held = places_held(problem, part, job);
    has_places = has_places && held && !job.one_node && job.per_pod.gpus == 1 &&
                 std::ranges::includes(problem.group(j).admitted, part.nodes);
    most.cpu = std::max(most.cpu, job.per_pod.cpu);
    most.memory = std::max(most.memory, job.per_pod.memory);
    for (std::size_t i = 0; i < most.others.size(); ++i)
      most.others[i] = std::max(most.others[i], job.per_pod.others[i]);
    part.held.push_back(held.value_or(NodePlaces{}));
  }
  part.has_places = has_places && std::ranges::all_of(part.nodes, [&](NodeIndex n) {
                      return room[n].copies_of(most) == room[n].gpus;
                    });
  if (!part.has_places) part.held.assign(part.jobs.size(), {});
  for (std::size_t i = 0; i < part.nodes.size() && part.has_places; ++i)
    part.node_gpus[i] = room[part.nodes[i]].gpus;
}

// In order, so that equal ones are left out from the end.
std::vector<Part> split_by_type(const Problem& problem, const std::vector<JobIndex>& order) {
  std::vector<Part> parts(problem.count_types());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    const Node& node = problem.node(n);
    if (!node.schedulable) continue;
    Part& part = parts[problem.type_of(n).value];
    part.nodes.push_back(n);
    part.node_gpus.push_back(node.gpus_total);
    part.gpus += node.gpus_total;
    part.largest = std::max(part.largest, node.gpus_total);
  }
  Room room(problem);
  for (const JobIndex j : order) {
    const auto type = room.type_for(j);
    if (!type) continue;
    room.take(j, *type, problem.job(j).min);
    parts[type->value].jobs.push_back(j);
  }
  const Table<NodeIndex, Resources> on_nodes = room_on_nodes(problem);
  for (Part& part : parts) find_places(problem, on_nodes, part);
  return parts;
}

// The power mean rises with the sum of these.
double score_of(double value, double p) {
  const double above = value + kLeastValue;
  return p == 0 ? std::log(above) : std::pow(above, p) / p;
}

class SizesOf {
 public:
  SizesOf(const Problem& problem, const Part& part, TypeIndex type, double p, double restart_s)
      : problem_(problem),
        part_(part),
        type_(type),
        quota_(problem),
        each_(std::clamp(kTriedSizes / std::ssize(part.jobs), kDoublingLeast, kDoublingMost)),
        fairness_(p),
        restart_s_(restart_s) {}

  // Of the job at that position of the part.
  ScoredSizes of(std::size_t at) const {
    const JobIndex j = part_.jobs[at];
    const Job& job = problem_.job(j);
    const GoodputTable goodput(job, problem_.name(type_));
    const Gpus now = effective_gpus(job);
    const Gpus fair = fair_share(job);
    const double at_fair = goodput.at(fair, nodes_for(part_, fair));
    const double restart = restart_factor(job);
    ScoredSizes sizes{{0, job.weight * score_of(0, fairness_)}};
    const Gpus bound = std::min({job.max, std::max(goodput.most(), now), most_of(j)});
    const Gpus most = size_at_most(job, bound).value_or(0);
    for (auto size = size_at_least(job, job.min); size && *size <= most;
         size = size_at_least(job, after(*size, now, most))) {
      const auto add = [&](std::int64_t nodes, bool stays) {
        const double ratio = at_fair > 0 ? goodput.at(*size, nodes) / at_fair : 0;
        const double value = ratio < kMostValue ? ratio : kMostValue;  // also of what is no number
        const double factor = stays ? 1 : restart;
        sizes.push_back(
            {*size, job.weight * score_of(value * factor, fairness_), stays && part_.has_places});
      };
      if (*size != now || part_.has_places) add(nodes_for(part_, *size), false);
      if (*size == now)
        add(part_.has_places ? std::ssize(part_.held[at]) : nodes_for(part_, *size), true);
    }
    return sizes;
  }

 private:
  // All sizes up to twice `each_`, and beyond these so many in each doubling; not past what it has,
  // nor past the most.
  Gpus after(Gpus size, Gpus now, Gpus most) const {
    Gpus next = size + std::max<Gpus>(size / each_, 1);
    for (const Gpus one : {now, most})
      if (one > size) next = std::min(next, one);
    return next;
  }

  // The least size that is not below an equal share; its largest, if that is below.
  Gpus fair_share(const Job& job) const {
    const Gpus equal = std::max<Gpus>(part_.gpus / std::ssize(part_.jobs), 1);
    const auto size = size_at_least(job, std::max(equal, job.min));
    return size ? *size : size_at_most(job, job.max).value_or(job.min);
  }

  Gpus most_of(JobIndex j) const {
    const Gpus room = problem_.job(j).one_node ? part_.largest : part_.gpus;
    return std::min(room, quota_.most(problem_.queue_of(j), type_));
  }

  double restart_factor(const Job& job) const {
    const double age_s = static_cast<double>(problem_.state().now_ms) / 1000 - job.queued_at;
    const double lost_s = static_cast<double>(job.restarts) * restart_s_;
    return age_s + restart_s_ > 0 ? std::max(age_s - lost_s, 0.0) / (age_s + restart_s_) : 1;
  }

  const Problem& problem_;
  const Part& part_;
  TypeIndex type_;
  QuotaBook quota_;
  Gpus each_;
  double fairness_;
  double restart_s_;
};

// The last of that size is where it stays.
std::size_t choice_of(const ScoredSizes& sizes, Gpus gpus) {
  const auto found = std::find_if(sizes.rbegin(), sizes.rend(),
                                  [&](const ScoredSize& one) { return one.gpus == gpus; });
  return found == sizes.rend() ? 0 : static_cast<std::size_t>(sizes.rend() - found - 1);
}

// What one choice of sizes costs to make, to place and to score. More sizes than most jobs have
// count for the steps down them, more kinds of nodes than most clusters have for keeping these in
// order.
std::int64_t work_of(const SizedJobs& jobs) {
  constexpr std::int64_t kSizesFree = 64;
  constexpr std::int64_t kStepsOfOne = 16;
  constexpr std::int64_t kKindsOfOne = 1024;
  std::int64_t steps = 0;
  for (const ScoredSizes& sizes : jobs.sizes)
    steps += std::max<std::int64_t>(std::ssize(sizes) - kSizesFree, 0);
  const Gpus largest = jobs.nodes.empty() ? 0 : *std::ranges::max_element(jobs.nodes);
  const std::int64_t kinds = std::min<std::int64_t>(std::ssize(jobs.nodes), largest);
  return (std::ssize(jobs.sizes) + std::ssize(jobs.nodes)) * (1 + kinds / kKindsOfOne) +
         steps / kStepsOfOne;
}

// The part's jobs get their sizes, and their places where the search says them.
void share_out(const Problem& problem, const Part& part, TypeIndex type,
               const Pollux::Settings& settings, Targets& targets) {
  const SizesOf scored(problem, part, type, settings.fairness, settings.restart_s);
  SizedJobs jobs{.nodes = part.node_gpus, .sizes = {}, .held = part.held};
  ChosenSizes now;
  jobs.sizes.reserve(part.jobs.size());
  now.reserve(part.jobs.size());
  for (std::size_t i = 0; i < part.jobs.size(); ++i) {
    jobs.sizes.push_back(scored.of(i));
    now.push_back(choice_of(jobs.sizes.back(), effective_gpus(problem.job(part.jobs[i]))));
  }
  const std::int64_t a_generation = work_of(jobs) * static_cast<std::int64_t>(kPopulation);
  const auto time = static_cast<std::uint64_t>(problem.state().now_ms);
  const GeneticOptions options{.generations = static_cast<int>(std::min<std::int64_t>(
                                   settings.generations, kWorkMost / a_generation)),
                               .seed = mix64(time + mix64(settings.seed)) + type.value};
  const ChosenSizes chosen = genetic_sizes(jobs, now, options);
  const auto places = place_all(jobs, chosen);
  CHECK(places.has_value());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::size_t j = part.jobs[i].value;
    targets.sizes[j] = jobs.sizes[i][chosen[i]].gpus;
    if (!part.has_places) continue;
    auto& nodes = targets.places[j].emplace();
    for (const auto& [node, gpus] : (*places)[i])
      nodes.insert(nodes.end(), static_cast<std::size_t>(gpus), part.nodes[node]);
  }
}

}  // namespace

Descriptor Pollux::describe() {
  return {
      .name = "pollux",
      .about = "sizes of the best mean speedup against a fair share, by goodput",
      .rule =
          "A job's value is its goodput over that of an equal share of the GPUs; another size or "
          "place than it has costs it the share of its life that it has spent, and would spend, in "
          "restarts. A genetic search finds sizes and places with the largest power mean of these "
          "values; no two jobs that span nodes share one. Of jobs that cannot all run, those that "
          "run stay, then those that have had least GPU time come first. A job gets at most as "
          "many GPUs as its goodput "
          "table has; without a table, twice as many as it was measured on. Where a job may not be "
          "on every node, or CPU or memory may run out, sizes alone are searched and nobody moves.",
      .choose =
          "Where jobs are elastic and their goodput is known (a table in the snapshot) or is their "
          "throughput, as with a fixed batch. It looks at no work left: short jobs get no more "
          "than long ones. GPU types are not told apart. Each move is a restart, which it weighs "
          "by restartSeconds. Large jobs may starve behind a stream of small ones.",
      .source =
          "Qiao et al., OSDI'21, section 4.2, and its artifact. *Reconstruction*: the search is "
          "over sizes and over who stays where it is, not over matrices of jobs by nodes. On its "
          "own workloads the mean completion times are within 3 % of the published ones "
          "(benchmarks.md)",
      .parameters = {{.name = "fairness",
                      .least = -10,
                      .most = 1,
                      .standard = -1,
                      .unit = "",
                      .about = "exponent of the power mean; 1: the sum; the lower, the fairer"},
                     {.name = "restartSeconds",
                      .least = 0,
                      .most = 100'000,
                      .standard = 30,
                      .unit = "s",
                      .about = "what a change of size is taken to cost a job"},
                     {.name = "generations",
                      .least = 0,
                      .most = 1000,
                      .standard = 100,
                      .unit = "",
                      .about = "of the genetic search, at most",
                      .is_whole = true},
                     {.name = "seed",
                      .least = 0,
                      .most = 1e9,
                      .standard = 0,
                      .unit = "",
                      .about = "of the genetic search's chance, beside the time of the round",
                      .is_whole = true}},
      .elastic = true,
      .timed = true,
      .uses_throughput = true,
      .uses_goodput = true};
}

Pollux::Pollux(const std::vector<double>& parameters)
    : settings_{.fairness = parameters.at(0),
                .restart_s = parameters.at(1),
                .generations = static_cast<int>(parameters.at(2)),
                .seed = static_cast<std::uint64_t>(parameters.at(3))} {}

Targets Pollux::decide(const Problem& problem) const {
  Targets targets{.displaces = Displaces::kLaterInOrder};
  targets.sizes.assign(problem.state().jobs.size(), 0);
  targets.places.assign(problem.state().jobs.size(), std::nullopt);
  // Who holds GPUs stays before equals that wait. By what they have had alone a job that starts
  // would come behind them at once, and be stopped before it has trained.
  const auto rank = [&](JobIndex j) {
    const Job& job = problem.job(j);
    return std::pair(effective_gpus(job) == 0, job.attained_gpu_ms);
  };
  const std::vector<Part> parts = split_by_type(problem, order_by(problem, rank));
  for (std::size_t t = 0; t < parts.size(); ++t)
    if (!parts[t].jobs.empty())
      share_out(problem, parts[t], {static_cast<std::uint32_t>(t)}, settings_, targets);
  // Whoever is left out displaces nobody.
  targets.order = order_by(
      problem, [&](JobIndex j) { return std::pair(targets.sizes[j.value] == 0, rank(j)); });
  return targets;
}

}  // namespace rubato::sched
