#include "scheduler/policy/rubato.h"

#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"

#include <algorithm>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLeastMs = 1000;  // of work left
constexpr double kFirstGuess = 600'000;
constexpr double kGuessFactor = 4;
constexpr double kPrice = 2;  // 1 to 3 give the same within 3 % on the Pollux workloads
constexpr Gpus kExplore = 4;
constexpr double kStallMs = 1000;
// Sizes that are looked at: all small ones, then in steps of an eighth.
constexpr Gpus kEachUpTo = 64;

Gpus after(Gpus size) { return size < kEachUpTo ? size + 1 : size + size / 8; }

double work_left_ms(const Job& job) {
  if (job.remaining_ms) return std::max(static_cast<double>(*job.remaining_ms), kLeastMs);
  const double had = static_cast<double>(job.attained_gpu_ms) / static_cast<double>(job.min);
  double guess = kFirstGuess;
  while (guess < had) guess *= kGuessFactor;
  return guess;
}

}  // namespace

// One job while GPUs are shared out.
struct RubatoPolicy::Claim {
  JobIndex index;
  const Job* job = nullptr;
  std::optional<TypeIndex> type;  // that it holds
  double left_ms = 0;             // at its minimum
  double service = 0;             // GPU time left, by weight: the order
  Gpus held = 0;
  Gpus size = 0;
  // Of `type`, once it is known.
  std::optional<Throughput> speed;
  double at_least = 0;  // speed at its minimum
  Gpus most = 0;        // that is tried
};

Descriptor RubatoPolicy::describe() {
  return {
      .name = "rubato",
      .about =
          "least work left first; sizes by what a GPU is worth to a job and to those behind it",
      .rule =
          "The job with the least work left, in GPU time by its weight, goes first, and preempts "
          "those with more when its minimum does not fit otherwise. Each job is given the size at "
          "which its own time, and that of the jobs behind it for each GPU, is least: an empty "
          "cluster gives it all GPUs that make it faster, a crowded one the size at which it is "
          "most efficient. Running jobs give back and grow accordingly, where the change is worth "
          "its cost. Work left is known from stop.steps and the measured throughput, and guessed "
          "from what a job has had before there is one.",
      .choose =
          "Where jobs are elastic and their mean completion time counts. A long job is served "
          "late in a crowded cluster, but keeps its minimum once it has it unless somebody's "
          "minimum does not fit; maxWaitSeconds bounds how long it waits for that.",
      .source = "Rubato; order by Smith's rule (1956), guesses as the queues of Tiresias (NSDI'19)",
      .parameters = {{.name = "switchingMargin",
                      .least = 0,
                      .most = 100,
                      .standard = 0.2,
                      .about = "a job that waits comes before one that runs only if the other has "
                               "this part more work left"},
                     {.name = "maxWaitSeconds",
                      .least = 1,
                      .most = 1e8,
                      .standard = 14'400,
                      .unit = "s",
                      .about = "a job that has waited so long for its first start comes before all "
                               "others of its priority"},
                     {.name = "prepareSeconds",
                      .least = 0,
                      .most = 86'400,
                      .standard = 30,
                      .unit = "s",
                      .about = "how long pods that join take until they train"}},
      .knows = Knows::kRemaining,
      .elastic = true,
      .timed = true,
      .uses_throughput = true};
}

RubatoPolicy::RubatoPolicy(const std::vector<double>& parameters)
    : switching_margin_(parameters.at(0)),
      max_wait_ms_(parameters.at(1) * 1000),
      prepare_ms_(parameters.at(2) * 1000) {}

std::vector<RubatoPolicy::Claim> RubatoPolicy::claims_of(const Problem& problem) const {
  std::vector<Claim> claims;
  claims.reserve(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    Claim claim{.index = j, .job = &job, .left_ms = work_left_ms(job), .held = effective_gpus(job)};
    for (const Held& pod : job.held)
      if (!pod.lost && !pod.leaving && !claim.type) claim.type = problem.type_named(pod.gpu_type);
    claim.service = claim.left_ms * static_cast<double>(job.min) / std::max(job.weight, 1e-9);
    if (claim.held > 0) claim.service /= 1 + switching_margin_;
    claims.push_back(std::move(claim));
  }
  return claims;
}

// Its own time until it ends with so many GPUs, and that of `price` others a GPU; ms.
double RubatoPolicy::cost(const Claim& claim, Gpus gpus, double price) const {
  const double work = claim.left_ms * claim.at_least;
  double ms = work / claim.speed->at(gpus);
  if (claim.held > 0 && gpus > claim.held) {
    const double now = claim.speed->at(claim.held);
    const double before = work / now;
    ms = before <= prepare_ms_
             ? before
             : prepare_ms_ + (work - prepare_ms_ * now) / claim.speed->at(gpus) + kStallMs;
  } else if (claim.held > 0 && gpus < claim.held) {
    ms += kStallMs;
  }
  return ms * (1 + price * static_cast<double>(gpus));
}

Gpus RubatoPolicy::best_size(const Claim& claim, Gpus from, Gpus most, double price) const {
  Gpus best = 0;
  double least = 0;
  const auto look_at = [&](Gpus size) {
    const double now = cost(claim, size, price);
    if (best != 0 && now >= least) return;
    best = size;
    least = now;
  };
  const Job& job = *claim.job;
  for (auto n = size_at_least(job, from); n && *n <= most; n = size_at_least(job, after(*n)))
    look_at(*n);
  // What it has, and the bound, are looked at whatever the steps are.
  for (const Gpus one : {claim.held, most})
    if (const auto n = size_at_most(job, one); n && *n >= from && *n <= most) look_at(*n);
  return best;
}

Targets RubatoPolicy::decide(const Problem& problem) const {
  const ClusterState& state = problem.state();
  std::vector<Claim> claims = claims_of(problem);
  const double now_ms = static_cast<double>(state.now_ms);
  Targets targets{.order = order_by(problem,
                                    [&](JobIndex j) {
                                      const Job& job = problem.job(j);
                                      const bool starves =
                                          job.attained_gpu_ms == 0 && claims[j.value].held == 0 &&
                                          now_ms - job.queued_at * 1000 > max_wait_ms_;
                                      return std::pair(!starves, claims[j.value].service);
                                    }),
                  .displaces = Displaces::kLaterInOrder};
  Table<TypeIndex, Gpus> left(problem.count_types());
  double gpus = 0;
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    if (!problem.node(n).schedulable) continue;
    left[problem.type_of(n)] += problem.node(n).gpus_total;
    gpus += static_cast<double>(problem.node(n).gpus_total);
  }
  QuotaBook quota(problem);
  const auto give = [&](Claim& claim, Gpus size) {
    left[*claim.type] -= size - claim.size;
    quota.take(problem.queue_of(claim.index), *claim.type, size - claim.size);
    claim.size = size;
  };
  const auto may_have = [&](const Claim& claim) {
    const Gpus room = quota.room(problem.queue_of(claim.index), *claim.type);
    return std::min(claim.most, claim.size + std::min(left[*claim.type], room));
  };
  double behind = static_cast<double>(claims.size());
  for (const JobIndex j : targets.order) {
    Claim& claim = claims[j.value];
    const Job& job = *claim.job;
    behind -= 1;
    if (!job.refused.empty() || (!job.started && !job.not_admitted.empty())) continue;
    const auto& types = problem.group(j).types;
    if (!claim.type && !types.empty())
      claim.type = *std::ranges::max_element(types, {}, [&](TypeIndex t) { return left[t]; });
    if (!claim.type) continue;
    claim.speed.emplace(job.measured, problem.name(*claim.type));
    claim.at_least = claim.speed->at(job.min);
    const Gpus known = std::max(claim.speed->most_measured(), job.min);
    claim.most = std::min(job.max, kExplore * known);
    give(claim, best_size(claim, job.min, may_have(claim), kPrice * behind / std::max(gpus, 1.0)));
  }
  targets.sizes.assign(claims.size(), 0);
  for (const JobIndex j : targets.order) {
    Claim& claim = claims[j.value];
    if (claim.size > 0 && may_have(claim) > claim.size)
      give(claim, best_size(claim, claim.size, may_have(claim), 0));
    targets.sizes[j.value] = claim.size;
  }
  return targets;
}

}  // namespace rubato::sched
