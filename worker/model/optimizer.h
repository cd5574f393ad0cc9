// AdamW, the learning-rate schedule and gradient clipping. Every number is a function of the
// committed step and of the reduced gradient: no running product, no clock, no rank.
#pragma once

#include "worker/backend/device.h"
#include "worker/model/parameter_table.h"
#include "worker/model/training_state.h"

#include <cstdint>
#include <vector>

namespace rubato::worker {

struct OptimizerConfig {
  double learning_rate = 6e-4;
  double min_learning_rate = 6e-5;  // where the cosine ends
  std::int64_t warmup_steps = 0;    // linear, from learning_rate / warmup_steps
  std::int64_t decay_steps = 0;     // the cosine ends at this step; 0: constant after the warm-up
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // decoupled; on matrices and embeddings only
  double clip_norm = 1.0;     // 0: never clip

  bool operator==(const OptimizerConfig&) const = default;
  Status validate() const;
};

// The rate of step `step` (zero-based).
double learning_rate_at(const OptimizerConfig& config, std::int64_t step);

// sqrt of the sum of squares, from fixed chunks added in the order of chunks: equal wherever the
// gradient is.
class GradientNorm {
 public:
  static Result<GradientNorm> create(Device& device, std::int64_t count);
  // Waits for the stream.
  Result<double> of(Stream& stream, ConstBuffer gradient);

 private:
  Device* device_ = nullptr;
  Arena arena_;
  Buffer chunks_;
  std::vector<double> host_chunks_;
};

class AdamW {
 public:
  static Result<AdamW> create(const OptimizerConfig& config, Device& device,
                              const ParameterTable& table);

  Result<double> norm(Stream& stream, ConstBuffer gradient) { return norm_.of(stream, gradient); }

  // Applies step state.step() with this (mean) gradient, clipped by `norm`, and counts the step as
  // committed: state.step() becomes one more. Asynchronous. `norm` must be finite.
  void apply(Stream& stream, ConstBuffer gradient, double norm, TrainingState& state);

 private:
  AdamW() = default;
  // A run of the flat buffer with one kind of decay.
  struct Run {
    std::int64_t first;
    std::int64_t count;
    bool decays;
  };
  OptimizerConfig config_;
  Device* device_ = nullptr;
  GradientNorm norm_;
  std::vector<Run> runs_;
};

}  // namespace rubato::worker
