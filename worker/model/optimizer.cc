#include "worker/model/optimizer.h"

#include "common/training_limits.h"
#include "worker/model/scalar_math.h"

#include <algorithm>
#include <limits>

namespace rubato::worker {

Status OptimizerConfig::validate() const {
  const auto bad = [](const char* field, const char* rule) {
    return Error(Code::kInvalid, std::string(field) + " " + rule);
  };
  if (!(learning_rate > 0 && learning_rate <= training::kLearningRateMost))
    return bad("learningRate", "must lie in (0, 100]");
  if (!(min_learning_rate >= 0 && min_learning_rate <= learning_rate))
    return bad("minLearningRate", "must lie in [0, learningRate]");
  if (warmup_steps < 0) return bad("warmupSteps", "must not be negative");
  if (decay_steps != 0 && decay_steps < warmup_steps)
    return bad("decaySteps", "must be 0 or at least warmupSteps");
  static_assert(static_cast<float>(training::kBetaMost) < 1);
  static_assert(static_cast<float>(training::kEpsilonLeast) >= std::numeric_limits<float>::min());
  if (!(beta1 >= 0 && beta1 <= training::kBetaMost))
    return bad("beta1", "must lie in [0, 0.9999999]");
  if (!(beta2 >= 0 && beta2 <= training::kBetaMost))
    return bad("beta2", "must lie in [0, 0.9999999]");
  if (!(epsilon > training::kEpsilonLeast && epsilon <= training::kEpsilonMost))
    return bad("epsilon", "must lie in (1e-37, 1]");
  if (!(weight_decay >= 0 && weight_decay <= training::kWeightDecayMost))
    return bad("weightDecay", "must lie in [0, 1]");
  if (!(clip_norm >= 0)) return bad("clipNorm", "must not be negative");
  return ok();
}

double learning_rate_at(const OptimizerConfig& config, std::int64_t step) {
  if (step < config.warmup_steps)
    return config.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(config.warmup_steps);
  if (config.decay_steps == 0) return config.learning_rate;
  if (step >= config.decay_steps) return config.min_learning_rate;
  const double part = static_cast<double>(step - config.warmup_steps) /
                      static_cast<double>(config.decay_steps - config.warmup_steps);
  const double weight = 0.5 * (1.0 + cos_of_pi(part));
  return config.min_learning_rate + weight * (config.learning_rate - config.min_learning_rate);
}

Result<GradientNorm> GradientNorm::create(Device& device, std::int64_t count) {
  GradientNorm norm;
  norm.device_ = &device;
  const std::int64_t chunks = (count + kNormChunkElements - 1) / kNormChunkElements;
  TRY(norm.arena_, device.allocate(Arena::bytes_for(DType::kF64, chunks)));
  norm.chunks_ = norm.arena_.take(DType::kF64, chunks);
  norm.host_chunks_.resize(static_cast<std::size_t>(chunks));
  return norm;
}

Result<double> GradientNorm::of(Stream& stream, ConstBuffer gradient) {
  device_->kernels().squared_norm_chunks(stream, gradient, chunks_);
  device_->copy_to_host(stream, host_chunks_.data(), chunks_);
  TRY_OK(stream.synchronize());
  double sum = 0.0;
  for (const double chunk : host_chunks_) sum += chunk;
  return sqrt_of(sum);
}

Result<AdamW> AdamW::create(const OptimizerConfig& config, Device& device,
                            const ParameterTable& table) {
  TRY_OK(config.validate());
  AdamW adamw;
  adamw.config_ = config;
  adamw.device_ = &device;
  TRY(adamw.norm_, GradientNorm::create(device, table.flat_count()));
  for (const Parameter& entry : table.entries()) {
    if (!adamw.runs_.empty() && adamw.runs_.back().decays == entry.decays)
      adamw.runs_.back().count += entry.slot;
    else
      adamw.runs_.push_back({entry.offset, entry.slot, entry.decays});
  }
  return adamw;
}

void AdamW::apply(Stream& stream, ConstBuffer gradient, double norm, TrainingState& state) {
  CHECK(norm >= 0.0 && norm < 1e300);
  const auto t = static_cast<std::uint64_t>(state.step()) + 1;
  AdamWStep step;
  step.learning_rate = static_cast<float>(learning_rate_at(config_, state.step()));
  step.beta1 = static_cast<float>(config_.beta1);
  step.beta2 = static_cast<float>(config_.beta2);
  step.epsilon = static_cast<float>(config_.epsilon);
  step.first_correction = static_cast<float>(1.0 - power_of(config_.beta1, t));
  step.second_correction = static_cast<float>(sqrt_of(1.0 - power_of(config_.beta2, t)));
  if (config_.clip_norm > 0.0)
    step.gradient_scale = static_cast<float>(std::min(1.0, config_.clip_norm / (norm + 1e-6)));
  for (const Run& run : runs_) {
    step.weight_decay = run.decays ? static_cast<float>(config_.weight_decay) : 0.0f;
    device_->kernels().adamw(stream, step, gradient.slice(run.first, run.count),
                             state.parameters().slice(run.first, run.count),
                             state.exp_avg().slice(run.first, run.count),
                             state.exp_avg_sq().slice(run.first, run.count));
  }
  state.set_step(state.step() + 1);
}

}  // namespace rubato::worker
