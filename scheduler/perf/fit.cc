#include "scheduler/perf/fit.h"

#include "scheduler/perf/least_squares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace rubato::sched {
namespace {

enum StepParameter : std::size_t {
  kGradAlpha,
  kGradBeta,
  kLocalAlpha,
  kLocalBeta,
  kRemoteAlpha,
  kRemoteBeta,
  kGamma,
  kStepParameters
};
constexpr std::size_t kGradGroup = 1;
constexpr std::size_t kStepGroup = 2;

constexpr double kLeast = 1e-18;  // of an alpha or a beta: as good as 0
constexpr double kMost = 1e15;
constexpr double kGammaWeight = 1e-3;
constexpr double kBetaWeight = 1e-2;
constexpr double kUnknownBatchShare = 0.5;  // of T_grad in grad_alpha, with one batch only

// Where the search starts: these shares of what was seen, times each other.
constexpr double kGradShares[] = {0.5, 0.1};  // of T_grad in grad_alpha
constexpr double kGammas[] = {1.1, 3};
constexpr double kSyncShare = 0.3;       // of the step in alpha
constexpr double kSyncBetaShare = 0.03;  // of alpha in beta

// Classes of a Band: what a pass takes, and steps by where they run. Two nodes exchange all they
// have between one pair of hosts, which the model does not tell from a ring of more.
enum Class : std::size_t { kPass, kOneGpu, kOneNode, kTwoNodes, kMoreNodes, kClasses };

Class class_of(Spread spread) {
  if (spread.nodes > 2) return kMoreNodes;
  if (spread.nodes > 1) return kTwoNodes;
  return spread.gpus > 1 ? kOneNode : kOneGpu;
}

struct Seen {
  bool several_batches = false;
  bool local = false;        // several GPUs on one node
  bool local_more = false;   // … more than two
  bool remote = false;       // several nodes
  bool remote_more = false;  // … more than two GPUs
};

bool is_within(double x, double least, double most) { return x >= least && x <= most; }

Status check(const StepObservation& seen) {
  const auto invalid = [](const char* what) { return Error(Code::kInvalid, what); };
  if (seen.spread.nodes < 1 || seen.spread.gpus < seen.spread.nodes)
    return invalid("expected at least one node, and a GPU on each");
  if (!is_within(seen.local_batch, 1e-9, 1e12)) return invalid("local batch out of bounds");
  if (seen.accumulated < 0) return invalid("negative accumulation");
  if (!is_within(seen.step_s, kStepSecondsLeast, kStepSecondsMost))
    return invalid("step time out of bounds");
  if (seen.sync_s && !(*seen.sync_s >= 0 && *seen.sync_s < seen.step_s))
    return invalid("expected a sync time from 0 to less than the step");
  return ok();
}

// Of a pass; an upper bound where it was not measured.
double grad_seen_s(const StepObservation& seen) {
  const double passes = static_cast<double>(seen.accumulated) + 1;
  return std::max((seen.step_s - seen.sync_s.value_or(0)) / passes, kStepSecondsLeast);
}

bool is_grad_known(const StepObservation& seen) { return seen.sync_s || seen.spread.gpus == 1; }

Seen look_at(const std::vector<StepObservation>& observations) {
  Seen seen;
  for (const StepObservation& one : observations) {
    const bool is_remote = one.spread.nodes > 1;
    seen.several_batches |= one.local_batch != observations.front().local_batch;
    seen.remote |= is_remote;
    seen.remote_more |= is_remote && one.spread.gpus > 2;
    seen.local |= !is_remote && one.spread.gpus > 1;
    seen.local_more |= !is_remote && one.spread.gpus > 2;
  }
  return seen;
}

StepModel model_of(const Slopes& at) {
  return {.grad_alpha = std::exp(at[kGradAlpha]),
          .grad_beta = std::exp(at[kGradBeta]),
          .local_alpha = std::exp(at[kLocalAlpha]),
          .local_beta = std::exp(at[kLocalBeta]),
          .remote_alpha = std::exp(at[kRemoteAlpha]),
          .remote_beta = std::exp(at[kRemoteBeta]),
          .gamma = std::clamp(std::exp(at[kGamma]), 1.0, kGammaMax)};
}

Residual grad_residual(const StepModel& model, const StepObservation& seen) {
  Residual one{.group = kGradGroup};
  const double grad = model.grad_s(seen.local_batch);
  one.value = std::log(grad / grad_seen_s(seen));
  one.slopes[kGradAlpha] = model.grad_alpha / grad;
  one.slopes[kGradBeta] = model.grad_beta * seen.local_batch / grad;
  return one;
}

Residual step_residual(const StepModel& model, const StepObservation& seen) {
  Residual one{.group = kStepGroup};
  const double grad = model.grad_s(seen.local_batch);
  const double sync = model.sync_s(seen.spread);
  const double last = overlapped(grad, sync, model.gamma);
  const double step = static_cast<double>(seen.accumulated) * grad + last;
  one.value = std::log(step / seen.step_s);
  const double grad_part = std::pow(grad / last, model.gamma);
  const double by_grad = (step - last + last * grad_part) / step;
  one.slopes[kGradAlpha] = by_grad * model.grad_alpha / grad;
  one.slopes[kGradBeta] = by_grad * model.grad_beta * seen.local_batch / grad;
  if (!(sync > 0)) return one;
  const double sync_part = std::pow(sync / last, model.gamma);
  const bool is_remote = seen.spread.nodes > 1;
  const double alpha_share = (is_remote ? model.remote_alpha : model.local_alpha) / sync;
  const double by_sync = last / step * sync_part;
  one.slopes[is_remote ? kRemoteAlpha : kLocalAlpha] = by_sync * alpha_share;
  one.slopes[is_remote ? kRemoteBeta : kLocalBeta] = by_sync * (1 - alpha_share);
  one.slopes[kGamma] = last / step *
                       ((grad_part > 0 ? grad_part * std::log(grad / last) : 0) +
                        (sync_part > 0 ? sync_part * std::log(sync / last) : 0));
  return one;
}

void add_penalties(const StepModel& model, std::vector<Residual>& to) {
  Residual gamma;
  gamma.value = std::sqrt(kGammaWeight) * (model.gamma - 1);
  gamma.slopes[kGamma] = std::sqrt(kGammaWeight) * model.gamma;
  to.push_back(gamma);
  const auto add_ratio = [&](double alpha, double beta, StepParameter of_alpha,
                             StepParameter of_beta) {
    Residual ratio;
    ratio.value = std::sqrt(kBetaWeight) * beta / alpha;
    ratio.slopes[of_alpha] = -ratio.value;
    ratio.slopes[of_beta] = ratio.value;
    to.push_back(ratio);
  };
  add_ratio(model.local_alpha, model.local_beta, kLocalAlpha, kLocalBeta);
  add_ratio(model.remote_alpha, model.remote_beta, kRemoteAlpha, kRemoteBeta);
}

// Geometric means of what was seen, as logarithms.
struct Means {
  double grad = 0;
  double batch = 0;
  double local = 0;   // of steps on several GPUs of one node
  double remote = 0;  // of steps on several nodes
};

Means means_of(const std::vector<StepObservation>& observations) {
  const bool any_known = std::any_of(observations.begin(), observations.end(), is_grad_known);
  const auto mean = [&](auto of, auto counts) {
    double sum = 0;
    double count = 0;
    for (const StepObservation& one : observations) {
      if (!counts(one)) continue;
      sum += std::log(of(one));
      ++count;
    }
    return count > 0 ? sum / count : 0;
  };
  const auto step_s = [](const StepObservation& one) { return one.step_s; };
  return {
      .grad = mean(grad_seen_s,
                   [&](const StepObservation& one) { return !any_known || is_grad_known(one); }),
      .batch = mean([](const StepObservation& one) { return one.local_batch; },
                    [](const StepObservation&) { return true; }),
      .local = mean(step_s, [](const StepObservation& one) { return one.spread.nodes == 1; }),
      .remote = mean(step_s, [](const StepObservation& one) { return one.spread.nodes > 1; })};
}

std::vector<Range> ranges_for(const Seen& seen, const Means& means) {
  std::vector<Range> ranges(kStepParameters, {std::log(kLeast), std::log(kMost)});
  const auto fix = [&](StepParameter which, double at) { ranges[which] = {at, at}; };
  ranges[kGamma] = {0, std::log(kGammaMax)};
  if (!seen.several_batches) fix(kGradAlpha, means.grad + std::log(kUnknownBatchShare));
  if (!seen.local) fix(kLocalAlpha, 0);
  if (!seen.local_more) fix(kLocalBeta, std::log(kLeast));
  if (!seen.remote) fix(kRemoteAlpha, 0);
  if (!seen.remote_more) fix(kRemoteBeta, std::log(kLeast));
  if (!seen.local && !seen.remote) fix(kGamma, 0);
  return ranges;
}

Slopes start_at(const Means& means, double grad_share, double gamma) {
  Slopes at{};
  at[kGradAlpha] = means.grad + std::log(grad_share);
  at[kGradBeta] = means.grad + std::log(1 - grad_share) - means.batch;
  at[kLocalAlpha] = means.local + std::log(kSyncShare);
  at[kLocalBeta] = at[kLocalAlpha] + std::log(kSyncBetaShare);
  at[kRemoteAlpha] = means.remote + std::log(kSyncShare);
  at[kRemoteBeta] = at[kRemoteAlpha] + std::log(kSyncBetaShare);
  at[kGamma] = std::log(gamma);
  return at;
}

void put_priors(const Seen& seen, StepModel& model) {
  if (!seen.local) model.local_alpha = 0;
  if (!seen.local_more) model.local_beta = 0;
  if (!seen.remote) model.remote_alpha = kUnseenRemote * model.local_alpha;
  if (!seen.remote_more) model.remote_beta = seen.remote ? 0 : kUnseenRemote * model.local_beta;
}

Band band_of(const std::vector<StepObservation>& observations, const StepModel& model,
             const std::vector<Range>& ranges) {
  std::vector<Witness> witnesses;
  std::map<std::pair<std::int64_t, Gpus>, std::size_t> spreads;
  for (const StepObservation& one : observations) {
    const auto [spread, is_new] =
        spreads.emplace(std::pair(one.spread.nodes, one.spread.gpus), spreads.size());
    const auto add = [&](const Residual& residual, Class of_class) {
      witnesses.push_back({.error = residual.value,
                           .slopes = residual.slopes,
                           .of_class = of_class,
                           .of_group = spread->second});
    };
    if (is_grad_known(one)) add(grad_residual(model, one), kPass);
    add(step_residual(model, one), class_of(one.spread));
  }
  const auto fitted = std::count_if(ranges.begin(), ranges.end(),
                                    [](const Range& range) { return range.least < range.most; });
  return {witnesses, kStepParameters, static_cast<std::size_t>(fitted), kClasses};
}

}  // namespace

StepPrediction StepFit::predict(Spread spread, double local_batch, std::int64_t accumulated) const {
  const double seconds = model_.step_s(spread, local_batch, accumulated);
  const StepObservation there{
      .spread = spread, .local_batch = local_batch, .accumulated = accumulated, .step_s = seconds};
  const double half = band_.half_width(step_residual(model_, there).slopes, class_of(spread));
  return {seconds, seconds * std::exp(-half), seconds * std::exp(half)};
}

Result<StepFit> fit_step(const std::vector<StepObservation>& observations) {
  if (observations.empty() || observations.size() > kObservationsMax)
    return Error(Code::kInvalid, "expected from 1 to " + std::to_string(kObservationsMax) +
                                     " observations of a step");
  for (std::size_t i = 0; i < observations.size(); ++i)
    if (const Status status = check(observations[i]); !status.ok())
      return status.error().in("observation " + std::to_string(i));
  const Seen seen = look_at(observations);
  const Means means = means_of(observations);
  const LeastSquares problem{.ranges = ranges_for(seen, means),
                             .residuals = [&](const Slopes& at, std::vector<Residual>& to) {
                               const StepModel model = model_of(at);
                               add_penalties(model, to);
                               for (const StepObservation& one : observations) {
                                 if (is_grad_known(one)) to.push_back(grad_residual(model, one));
                                 to.push_back(step_residual(model, one));
                               }
                             }};
  std::vector<Slopes> starts;
  for (const double share : kGradShares)
    for (const double gamma : kGammas) starts.push_back(start_at(means, share, gamma));
  const auto best = lowest_of(problem, starts);
  if (!best) return Error(Code::kInvalid, "the steps cannot be described by finite parameters");
  StepModel model = model_of(best->at);
  put_priors(seen, model);
  return StepFit(model, band_of(observations, model, problem.ranges));
}

}  // namespace rubato::sched
