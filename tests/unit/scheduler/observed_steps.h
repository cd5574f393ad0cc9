// Steps of a job as a generator of a seed draws them, for tests of fits.
#pragma once

#include "common/rng.h"
#include "scheduler/perf/fit.h"

#include <cmath>
#include <vector>

namespace rubato::sched {

inline StepModel some_step_model() {
  return {.grad_alpha = 0.05,
          .grad_beta = 0.01,
          .local_alpha = 0.02,
          .local_beta = 0.004,
          .remote_alpha = 0.2,
          .remote_beta = 0.01,
          .gamma = 2};
}

// About normal, of mean 0 and deviation 1.
inline double normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

inline const std::vector<Spread>& some_spreads() {
  static const std::vector<Spread> kSpreads = {{1, 1}, {1, 2}, {1, 4},  {1, 8},
                                               {2, 2}, {2, 8}, {4, 16}, {8, 64}};
  return kSpreads;
}

// What `model` says of each spread and of local batches 4 to 64, each time times exp(noise *
// normal).
inline std::vector<StepObservation> observed(const StepModel& model,
                                             const std::vector<Spread>& spreads, double noise,
                                             std::uint64_t seed) {
  Rng rng(seed);
  std::vector<StepObservation> all;
  for (const Spread spread : spreads)
    for (const double batch : {4.0, 8.0, 16.0, 32.0, 64.0}) {
      const double grad = model.grad_s(batch) * std::exp(noise * normal(rng));
      const double step =
          std::max(model.step_s(spread, batch) * std::exp(noise * normal(rng)), grad);
      all.push_back(
          {.spread = spread, .local_batch = batch, .step_s = step, .sync_s = step - grad});
    }
  return all;
}

}  // namespace rubato::sched
