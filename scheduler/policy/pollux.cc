#include "scheduler/policy/pollux.h"

#include "common/rng.h"
#include "scheduler/perf/goodput_table.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/solver/genetic_sizes.h"

#include <cmath>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLeastValue = 1e-3;  // so that a job without GPUs has a finite score (artifact)
// Sizes scored by the search, all jobs and generations together: what bounds its time where there
// are very many jobs.
constexpr std::int64_t kScoredMost = 200'000'000;

// All of one type.
struct Part {
  std::vector<Gpus> nodes;
  std::vector<JobIndex> jobs;
  Gpus gpus = 0;
  Gpus largest = 0;  // of its nodes
};

std::int64_t nodes_for(const Part& part, Gpus gpus) {
  return part.largest > 0 ? (gpus + part.largest - 1) / part.largest : 1;
}

std::int64_t nodes_held(const Job& job) {
  std::set<NodeId> nodes;
  for (const Held& pod : job.held)
    if (pod.stays()) nodes.insert(pod.node);
  return std::ssize(nodes);
}

// In order, so that equal ones are left out from the end.
std::vector<Part> split_by_type(const Problem& problem, const std::vector<JobIndex>& order) {
  std::vector<Part> parts(problem.count_types());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    const Node& node = problem.node(n);
    if (!node.schedulable) continue;
    Part& part = parts[problem.type_of(n).value];
    part.nodes.push_back(node.gpus_total);
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
        fairness_(p),
        restart_s_(restart_s) {}

  ScoredSizes of(JobIndex j) const {
    const Job& job = problem_.job(j);
    const GoodputTable goodput(job, problem_.name(type_));
    const Gpus now = effective_gpus(job);
    const Gpus fair = fair_share(job);
    const double at_fair = goodput.at(fair, nodes_for(part_, fair));
    const double restart = restart_factor(job);
    ScoredSizes sizes{{0, job.weight * score_of(0, fairness_)}};
    const Gpus most = std::min({job.max, std::max(goodput.most(), now), most_of(j)});
    for (auto size = size_at_least(job, job.min); size && *size <= most;
         size = size_at_least(job, *size + 1)) {
      const std::int64_t nodes = *size == now ? nodes_held(job) : nodes_for(part_, *size);
      double value = at_fair > 0 ? goodput.at(*size, nodes) / at_fair : 0;
      if (*size != now) value *= restart;
      sizes.push_back({*size, job.weight * score_of(value, fairness_)});
    }
    return sizes;
  }

 private:
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
  double fairness_;
  double restart_s_;
};

std::size_t position_of(const ScoredSizes& sizes, Gpus gpus) {
  const auto found = std::ranges::find(sizes, gpus, &ScoredSize::gpus);
  return found == sizes.end() ? 0 : static_cast<std::size_t>(found - sizes.begin());
}

}  // namespace

Descriptor Pollux::describe() {
  return {
      .name = "pollux",
      .about = "sizes of the best mean speedup against a fair share, by goodput",
      .rule =
          "A job's value is its goodput over that of an equal share of the GPUs; another size than "
          "it holds costs it the share of its life that it has spent, and would spend, in "
          "restarts. "
          "A genetic search finds sizes with the largest power mean of these values. Of jobs that "
          "cannot all run, those that have had least GPU time come first. A job gets at most as "
          "many "
          "GPUs as its goodput table has; without a table, twice as many as it was measured on.",
      .choose =
          "Where jobs are elastic and their goodput is known (a table in the snapshot) or is their "
          "throughput, as with a fixed batch. It looks at no work left: short jobs get no more "
          "than "
          "long ones. GPU types are not told apart.",
      .source =
          "Qiao et al., OSDI'21, section 4.2, and its artifact. *Reconstruction*: sizes, not "
          "places, "
          "are searched; its published results are *unverified* here",
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
                      .about = "of the genetic search, at most"},
                     {.name = "seed",
                      .least = 0,
                      .most = 1e9,
                      .standard = 0,
                      .unit = "",
                      .about = "of the genetic search's chance, beside the time of the round"}},
      .elastic = true,
      .timed = true,
      .uses_throughput = true,
      .uses_goodput = true};
}

Pollux::Pollux(const std::vector<double>& parameters)
    : fairness_(parameters.at(0)),
      restart_s_(parameters.at(1)),
      generations_(static_cast<int>(parameters.at(2))),
      seed_(static_cast<std::uint64_t>(parameters.at(3))) {}

Targets Pollux::decide(const Problem& problem) const {
  Targets targets{.displaces = Displaces::kLaterInOrder};
  targets.sizes.assign(problem.state().jobs.size(), 0);
  const auto attained = [&](JobIndex j) { return problem.job(j).attained_gpu_ms; };
  const std::vector<Part> parts = split_by_type(problem, order_by(problem, attained));
  for (std::size_t t = 0; t < parts.size(); ++t) {
    const Part& part = parts[t];
    if (part.jobs.empty()) continue;
    const SizesOf scored(problem, part, {static_cast<std::uint32_t>(t)}, fairness_, restart_s_);
    std::vector<ScoredSizes> sizes;
    ChosenSizes now;
    sizes.reserve(part.jobs.size());
    now.reserve(part.jobs.size());
    for (const JobIndex j : part.jobs) {
      sizes.push_back(scored.of(j));
      now.push_back(position_of(sizes.back(), effective_gpus(problem.job(j))));
    }
    const std::int64_t a_generation =
        std::ssize(part.jobs) * static_cast<std::int64_t>(kPopulation);
    const GeneticOptions options{
        .generations =
            static_cast<int>(std::min<std::int64_t>(generations_, kScoredMost / a_generation)),
        .seed = mix64(static_cast<std::uint64_t>(problem.state().now_ms) + mix64(seed_)) + t};
    const ChosenSizes chosen = genetic_sizes(part.nodes, sizes, now, options);
    for (std::size_t i = 0; i < chosen.size(); ++i)
      targets.sizes[part.jobs[i].value] = sizes[i][chosen[i]].gpus;
  }
  // Whoever is left out displaces nobody.
  targets.order = order_by(
      problem, [&](JobIndex j) { return std::pair(targets.sizes[j.value] == 0, attained(j)); });
  return targets;
}

}  // namespace rubato::sched
