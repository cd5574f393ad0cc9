#include "scheduler/perf/plan_model.h"

#include "scheduler/perf/goodput.h"
#include "scheduler/perf/least_squares.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace rubato::sched {
namespace {

enum PlanParameter : std::size_t {
  kCompute,
  kCompute3d,
  kTensor,
  kPipeline,
  kNodeGradients,
  kCardGradients,
  kShardedFactor,
  kUnpairedBetween,
  kUnpairedWithin,
  kRecomputeShare,
  kUpdate,
  kOffloadFixed,
  kOffloadShared,
  kConstant,
  kOverlap,
  kPlanParameters
};
static_assert(kPlanParameters <= kParametersMax);

constexpr std::size_t kGroup = 1;
constexpr double kForwardShare = 1.0 / 3;
constexpr double kSecondsLeast = 1e-9;
constexpr double kSecondsMost = 1e9;
constexpr std::int64_t kDegreeMax = 1'000'000;

// What is expected before anything is observed, in shares of the compute, and the bounds.
struct Prior {
  double share;
  double least;
  double most;
};
constexpr Prior kPriors[kPlanParameters] = {
    {1, 1e-3, 1e3},       // compute
    {1, 1e-3, 1e3},       // compute in three dimensions
    {0.1, 1e-6, 1e2},     // tensor
    {0.02, 1e-6, 1e2},    // pipeline
    {0.02, 1e-6, 1e2},    // gradients in a node
    {0.2, 1e-6, 1e2},     // gradients through cards
    {1, 0.1, 10},         // factor of a sharded optimizer
    {0.02, 1e-6, 1e2},    // … unpaired, a step between nodes
    {0.02, 1e-6, 1e2},    // … and one within a node
    {1.0 / 3, 0.05, 1},   // recomputing: one forward more
    {0.02, 1e-6, 1e2},    // update
    {0.1, 1e-6, 1e2},     // offloading
    {0.2, 1e-6, 1e2},     // … by replicas
    {0.02, 1e-6, 1e2},    // constant
    {1.5, 1, kGammaMax},  // gamma
};
bool is_share(std::size_t parameter) {
  return parameter != kShardedFactor && parameter != kRecomputeShare && parameter != kOverlap;
}
constexpr double kOverheads[] = {1, 0.1};  // starts, times those shares …
constexpr double kOverlaps[] = {1.1, 4};   // … and these

PlanModel plan_model_of(const Slopes& at) {
  const auto value = [&](PlanParameter which) { return std::exp(at[which]); };
  return {.compute = value(kCompute),
          .compute_3d = value(kCompute3d),
          .tensor = value(kTensor),
          .pipeline = value(kPipeline),
          .node_gradients = value(kNodeGradients),
          .card_gradients = value(kCardGradients),
          .sharded_factor = value(kShardedFactor),
          .unpaired_between = value(kUnpairedBetween),
          .unpaired_within = value(kUnpairedWithin),
          .recompute = value(kRecomputeShare),
          .update = value(kUpdate),
          .offload = value(kOffloadFixed),
          .offload_shared = value(kOffloadShared),
          .constant = value(kConstant),
          .gamma = std::clamp(value(kOverlap), 1.0, kGammaMax)};
}

// The parts of an iteration.
struct Parts {
  double pass = 0;  // forward and backward, as they are without recomputing
  double recomputed = 0;
  double tensor = 0;
  double pipeline = 0;
  double node_gradients = 0;
  double card_gradients = 0;
  double unpaired_between = 0;
  double unpaired_within = 0;
  double update = 0;
  double offload = 0;
  double offload_shared = 0;
  double constant = 0;

  double backward() const { return (1 - kForwardShare) * pass + recomputed; }
  double unpaired() const { return unpaired_between + unpaired_within; }
  double gradients() const { return node_gradients + card_gradients + unpaired(); }
  double rest() const {
    return kForwardShare * pass + tensor + pipeline + update + offload + offload_shared + constant;
  }
};

bool is_unpaired(const ExecutionPlan& plan, const PlanLayout& layout) {
  return !layout.is_paired && plan.technique != Technique::kOffload &&
         plan.tensor * plan.data > layout.gpus_per_node;
}

Parts parts_of(const PlanModel& model, const ExecutionPlan& plan, const PlanLayout& layout) {
  const auto stages = static_cast<double>(plan.pipeline);
  const auto shards = static_cast<double>(plan.tensor);
  const auto replicas = static_cast<double>(plan.data);
  const Technique how = plan.technique;
  Parts parts;
  parts.pass = (how == Technique::kThreeDimensional ? model.compute_3d : model.compute) /
               (shards * replicas);
  if (how == Technique::kRecompute) parts.recomputed = model.recompute * parts.pass;
  parts.tensor = model.tensor * (shards - 1) / (shards * replicas);
  parts.pipeline = model.pipeline * (stages - 1) / replicas;
  const double reduced = (replicas - 1) / (replicas * stages) *
                         (how == Technique::kShardedOptimizer ? model.sharded_factor : 1);
  if (shards * replicas <= static_cast<double>(layout.gpus_per_node))
    parts.node_gradients = model.node_gradients * reduced / shards;
  else
    parts.card_gradients = model.card_gradients * reduced / static_cast<double>(layout.cards);
  if (is_unpaired(plan, layout)) {
    const double nodes = std::min(static_cast<double>(layout.nodes), replicas);
    parts.unpaired_between = model.unpaired_between * (nodes - 1) / stages;
    parts.unpaired_within = model.unpaired_within * (replicas - nodes) / stages;
  }
  if (how == Technique::kOffload) {
    parts.offload = model.offload;
    parts.offload_shared = model.offload_shared / replicas;
  } else {
    parts.update =
        model.update / (stages * shards) / (how == Technique::kShardedOptimizer ? replicas : 1);
  }
  parts.constant = model.constant;
  return parts;
}

// Far from 0 it grows as a root, so that its square grows as the error itself.
Residual softened(Residual one) {
  const double part = one.value / kPlanOutlier;
  const double root = std::sqrt(1 + part * part);
  one.value *= std::sqrt(2 / (root + 1));
  const double slope = std::sqrt((root + 1) / 2) / root;
  for (double& of_parameter : one.slopes) of_parameter *= slope;
  return one;
}

Residual residual_of(const PlanModel& model, const PlanObservation& seen) {
  const Parts parts = parts_of(model, seen.plan, seen.layout);
  const double backward = parts.backward();
  const double gradients = parts.gradients();
  const double both = overlapped(backward, gradients, model.gamma);
  const double all = parts.rest() + both;
  Residual one{.value = std::log(all / seen.iteration_s), .group = kGroup};
  const double backward_part = std::pow(backward / both, model.gamma);
  const double by_backward = backward_part * both / backward;
  const double gradients_part = gradients > 0 ? std::pow(gradients / both, model.gamma) : 0;
  const double by_gradients = gradients > 0 ? gradients_part * both / gradients : 0;
  const bool is_3d = seen.plan.technique == Technique::kThreeDimensional;
  one.slopes[is_3d ? kCompute3d : kCompute] =
      (kForwardShare * parts.pass + by_backward * backward) / all;
  one.slopes[kTensor] = parts.tensor / all;
  one.slopes[kPipeline] = parts.pipeline / all;
  one.slopes[kNodeGradients] = by_gradients * parts.node_gradients / all;
  one.slopes[kCardGradients] = by_gradients * parts.card_gradients / all;
  if (seen.plan.technique == Technique::kShardedOptimizer)
    one.slopes[kShardedFactor] = by_gradients * (gradients - parts.unpaired()) / all;
  one.slopes[kUnpairedBetween] = by_gradients * parts.unpaired_between / all;
  one.slopes[kUnpairedWithin] = by_gradients * parts.unpaired_within / all;
  one.slopes[kRecomputeShare] = by_backward * parts.recomputed / all;
  one.slopes[kUpdate] = parts.update / all;
  one.slopes[kOffloadFixed] = parts.offload / all;
  one.slopes[kOffloadShared] = parts.offload_shared / all;
  one.slopes[kConstant] = parts.constant / all;
  if (gradients_part > 0 && backward_part > 0)
    one.slopes[kOverlap] =
        both / all *
        (backward_part * std::log(backward / both) + gradients_part * std::log(gradients / both));
  return softened(one);
}

Status check(const PlanObservation& seen) {
  const auto is_degree = [](std::int64_t x) { return x >= 1 && x <= kDegreeMax; };
  const bool is_flat = seen.plan.technique != Technique::kThreeDimensional;
  if (!is_degree(seen.plan.pipeline) || !is_degree(seen.plan.tensor) || !is_degree(seen.plan.data))
    return Error(Code::kInvalid, "expected degrees of at least 1");
  if (is_flat && (seen.plan.pipeline > 1 || seen.plan.tensor > 1))
    return Error(Code::kInvalid, "a data-parallel plan has neither stages nor shards");
  if (!is_degree(seen.layout.gpus_per_node) || !is_degree(seen.layout.cards) ||
      !is_degree(seen.layout.nodes))
    return Error(Code::kInvalid, "expected nodes, and GPUs and network cards on each");
  if (!(seen.iteration_s >= kSecondsLeast && seen.iteration_s <= kSecondsMost))
    return Error(Code::kInvalid, "iteration time out of bounds");
  return ok();
}

// The logarithm of what the whole batch may take on one GPU: the geometric mean of iterations times
// GPUs that share the batch, over the plans in three dimensions or the others; none of them: all.
double compute_seen(const std::vector<PlanObservation>& observations, bool in_3d) {
  double sum[2] = {0, 0};
  double count[2] = {0, 0};
  for (const PlanObservation& one : observations) {
    const bool is_3d = one.plan.technique == Technique::kThreeDimensional;
    sum[is_3d ? 1 : 0] +=
        std::log(one.iteration_s * static_cast<double>(one.plan.tensor * one.plan.data));
    ++count[is_3d ? 1 : 0];
  }
  const std::size_t own = in_3d ? 1 : 0;
  return count[own] > 0 ? sum[own] / count[own] : sum[1 - own] / count[1 - own];
}

Slopes expected(const std::vector<PlanObservation>& observations, double overheads, double gamma) {
  const double flat = compute_seen(observations, false);
  Slopes at{};
  for (std::size_t i = 0; i < kPlanParameters; ++i)
    at[i] = std::log(kPriors[i].share) + (is_share(i) ? flat : 0);
  at[kCompute3d] = compute_seen(observations, true);
  for (std::size_t i = kTensor; i < kPlanParameters; ++i)
    if (is_share(i)) at[i] += std::log(overheads);
  at[kOverlap] = std::log(gamma);
  return at;
}

std::vector<Range> ranges_around(const Slopes& prior) {
  std::vector<Range> ranges(kPlanParameters);
  for (std::size_t i = 0; i < kPlanParameters; ++i) {
    const double centre = prior[i] - std::log(kPriors[i].share);
    ranges[i] = {centre + std::log(kPriors[i].least), centre + std::log(kPriors[i].most)};
  }
  return ranges;
}

}  // namespace

double PlanModel::iteration_s(const ExecutionPlan& plan, const PlanLayout& layout) const {
  const Parts parts = parts_of(*this, plan, layout);
  return parts.rest() + overlapped(parts.backward(), parts.gradients(), gamma);
}

Result<PlanModel> fit_plans(const std::vector<PlanObservation>& observations) {
  if (observations.empty() || observations.size() > kPlanObservationsMax)
    return Error(Code::kInvalid, "expected from 1 to " + std::to_string(kPlanObservationsMax) +
                                     " observations of an iteration");
  for (std::size_t i = 0; i < observations.size(); ++i)
    if (const Status status = check(observations[i]); !status.ok())
      return status.error().in("observation " + std::to_string(i));
  const Slopes prior = expected(observations, 1, kPriors[kOverlap].share);
  const LeastSquares problem{.ranges = ranges_around(prior),
                             .residuals = [&](const Slopes& at, std::vector<Residual>& to) {
                               const PlanModel model = plan_model_of(at);
                               for (std::size_t i = 0; i < kPlanParameters; ++i) {
                                 Residual pull{.value = std::sqrt(kPlanPull) * (at[i] - prior[i])};
                                 pull.slopes[i] = std::sqrt(kPlanPull);
                                 to.push_back(pull);
                               }
                               for (const PlanObservation& one : observations)
                                 to.push_back(residual_of(model, one));
                             }};
  std::vector<Slopes> starts;
  for (const double overheads : kOverheads)
    for (const double gamma : kOverlaps) starts.push_back(expected(observations, overheads, gamma));
  const auto best = lowest_of(problem, starts);
  if (!best)
    return Error(Code::kInvalid, "the iterations cannot be described by finite parameters");
  return plan_model_of(best->at);
}

}  // namespace rubato::sched
