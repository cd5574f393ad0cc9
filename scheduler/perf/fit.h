// The parameters of a job's step (StepModel, goodput.h) from steps that were observed, and how far
// what they predict can be trusted.
//
// Minimised is what Pollux minimises (OSDI'21 §4.1 and its artifact): the root mean square error of
// the logarithm of the computing time of a pass, plus the same of the whole step, plus
//   1e-3 (gamma - 1)^2 + 1e-2 ((local_beta / local_alpha)^2 + (remote_beta / remote_alpha)^2)
// over the logarithms of the parameters, from kStepStarts fixed points; of equal ones the first.
//
// What was never seen is taken to be as good as it can be, as in Pollux, so that a scheduler tries
// it. Without a step on several GPUs of one node their reduction costs nothing; without one on
// several nodes it costs kUnseenRemote of what it costs on one; without one on more than two GPUs,
// further GPUs cost nothing more. With one local batch only, half of the computing time does not
// depend on the batch.
#pragma once

#include "common/result.h"
#include "scheduler/perf/band.h"
#include "scheduler/perf/goodput.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace rubato::sched {

constexpr std::size_t kObservationsMax = 100'000;
constexpr double kStepSecondsLeast = 1e-9;
constexpr double kStepSecondsMost = 1e9;
constexpr double kUnseenRemote = 1.1;

struct StepObservation {
  Spread spread;
  double local_batch = 1;        // samples of one pass on one GPU, 1e-9 to 1e12
  std::int64_t accumulated = 0;  // passes before the last one
  double step_s = 0;             // with all its passes: kStepSecondsLeast to kStepSecondsMost
  // How much of it waited for the reduction, from 0 to less than all; none: not measured. On one
  // GPU, where nothing waits, it need not be said.
  std::optional<double> sync_s;
};

// A step, and the interval in which it is observed with a probability of 90 % (band.h: classes are
// one GPU, one node, two nodes and more; groups are Spreads).
struct StepPrediction {
  double seconds = 0;
  double least_s = 0;
  double most_s = 0;
};

class StepFit {
 public:
  StepFit(const StepModel& model, Band band) : model_(model), band_(std::move(band)) {}
  const StepModel& model() const { return model_; }
  StepPrediction predict(Spread spread, double local_batch, std::int64_t accumulated = 0) const;

 private:
  StepModel model_;
  Band band_;
};

// kInvalid: no observation, too many, or one out of its bounds; the text says which.
Result<StepFit> fit_step(const std::vector<StepObservation>& observations);

}  // namespace rubato::sched
