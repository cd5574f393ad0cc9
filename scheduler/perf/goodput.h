// How fast a data-parallel job trains, and how much of that speed counts: Pollux' goodput
// (OSDI'21). Pure functions of numbers: no clock, no chance, no state.
//
// A step on K GPUs, each with a local batch of m samples, with s accumulated passes before it:
//   T_grad = grad_alpha + grad_beta * m                                            (§3.2)
//   T_sync = 0 for K = 1, else alpha + beta * (K - 2), alpha and beta of the regime: local when
//            all GPUs are on one node, remote otherwise                            (§3.2)
//   T_step = s * T_grad + (T_grad^gamma + T_sync^gamma)^(1 / gamma)                 (§3.2)
// gamma = 1: nothing overlaps; at kGammaMax nearly all of it does.
//   throughput = M / T_step with M = K * m * (s + 1)
//   efficiency = (phi + M0) / (phi + M), phi the gradient noise scale              (§3.1)
//   goodput    = throughput * efficiency                                           (§3)
#pragma once

#include "scheduler/model/cluster_state.h"

#include <cstdint>
#include <optional>

namespace rubato::sched {

constexpr double kGammaMax = 10;

// Where a job runs, as far as its speed depends on it. Both are at least 1, and nodes <= gpus.
struct Spread {
  std::int64_t nodes = 1;
  Gpus gpus = 1;
  bool operator==(const Spread&) const = default;
};

// Times are seconds and never negative; beta is seconds for each sample, or for each GPU more.
struct StepModel {
  double grad_alpha = 0;
  double grad_beta = 0;
  double local_alpha = 0;
  double local_beta = 0;
  double remote_alpha = 0;
  double remote_beta = 0;
  double gamma = 1;

  double grad_s(double local_batch) const;
  double sync_s(Spread spread) const;
  double step_s(Spread spread, double local_batch, std::int64_t accumulated = 0) const;
};

// (a^gamma + b^gamma)^(1/gamma) without overflow; gamma is at least 1, a and b at least 0.
double overlapped(double a, double b, double gamma);

// The gradient at the batch that the user chose: the square of its norm, and the variance of its
// estimate at that batch. phi = batch * variance / square.
struct GradientNoise {
  double square = 1;
  double variance = 0;
};

// Progress of one step of `batch` samples in steps of `first_batch`: 1 to batch / first_batch
// (§3.1; AdaScale's gain). A square of 0 means that noise is all there is. Estimates below zero
// count as 0; with neither known the gain is 1: a larger batch brings nothing.
double gain(const GradientNoise& noise, double batch, double first_batch);
// gain / (batch / first_batch): 1 at first_batch, falling from there. Never above 1.
double efficiency(const GradientNoise& noise, double batch, double first_batch);

struct BatchLimits {
  double first_batch = 1;  // what the user chose: efficiency is 1 here
  double max_batch = 1;    // equal to first_batch: the batch is fixed, only its split is chosen
  double min_local = 1;    // of one pass on one GPU
  double max_local = 1;    // what fits into the memory of one GPU
  std::int64_t max_accumulated = 64;
  // One GPU cannot measure the noise of a larger batch unless it accumulates (§4.1).
  bool needs_noise = true;
};

struct BatchChoice {
  double batch = 0;
  double local_batch = 0;
  std::int64_t accumulated = 0;
  double samples_per_s = 0;
  double efficiency = 0;
  double goodput = 0;  // samples/s that count
};

// The split of `batch` on `spread` with the fewest passes. Each pass has a whole number of samples
// on each GPU, all equal, so the batch is rounded up by less than gpus * passes. None where no
// split keeps the limits, or where any number is not finite.
std::optional<BatchChoice> split_batch(const StepModel& model, const GradientNoise& noise,
                                       const BatchLimits& limits, Spread spread, double batch);

constexpr int kBatchCandidates = 50;

// The split of highest goodput among kBatchCandidates batches from first_batch to max_batch, which
// are evenly spread in their logarithm (§4.1; its artifact samples so). Of equal
// ones the smallest batch. None as above.
std::optional<BatchChoice> best_batch(const StepModel& model, const GradientNoise& noise,
                                      const BatchLimits& limits, Spread spread);

}  // namespace rubato::sched
