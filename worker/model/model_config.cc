#include "common/training_limits.h"
#include "common/words.h"
#include "worker/model/model.h"

#include <cmath>

namespace rubato::worker {

namespace {

Status positive(std::int64_t value, std::int64_t most, const char* field) {
  if (value >= 1 && value <= most) return ok();
  return Error(Code::kInvalid, std::string(field) + " is " + std::to_string(value) +
                                   ", but must lie in 1.." + std::to_string(most));
}

Status at_most(double value, double most, const char* field) {
  if (value <= most) return ok();
  return Error(Code::kInvalid, std::string(field) + " is above " + std::to_string(most));
}

// Matrices that are multiplied as one lie side by side in the flat buffer, so each must fill whole
// blocks of 256 elements: hence the multiples of 16.
Status validate_llama(const ModelConfig& c) {
  TRY_OK(positive(c.kv_heads, c.heads, "kvHeads"));
  TRY_OK(positive(c.mlp_hidden, training::kMlpHiddenMost, "mlpHidden"));
  if (c.heads % c.kv_heads != 0)
    return Error(Code::kInvalid, "heads " + std::to_string(c.heads) + " is not a multiple of " +
                                     std::to_string(c.kv_heads) + ", its kvHeads");
  for (const auto& [value, field] :
       {std::pair(c.hidden, "hidden"), std::pair(c.mlp_hidden, "mlpHidden"),
        std::pair(c.hidden / c.heads, "the size of a head (hidden / heads)")})
    if (value % training::kLlamaGrain != 0)
      return Error(Code::kInvalid, std::string(field) + " is " + std::to_string(value) +
                                       ", but must be a multiple of 16 in the family llama");
  if (!(c.rope_theta >= 1)) return Error(Code::kInvalid, "ropeTheta must be at least 1");
  const RopeScaling& scaling = c.rope_scaling;
  TRY_OK(at_most(c.rope_theta, training::kRopeThetaMost, "ropeTheta"));
  TRY_OK(at_most(scaling.factor, training::kRopeFactorMost, "ropeScaling.factor"));
  TRY_OK(at_most(scaling.high_frequency_factor, training::kRopeFactorMost,
                 "ropeScaling.highFrequencyFactor"));
  if (!(scaling.factor >= 1)) return Error(Code::kInvalid, "ropeScaling.factor must be at least 1");
  if (!(scaling.low_frequency_factor > 0 &&
        scaling.high_frequency_factor > scaling.low_frequency_factor))
    return Error(Code::kInvalid,
                 "ropeScaling.highFrequencyFactor must be above lowFrequencyFactor, and both above "
                 "0");
  return positive(scaling.original_length, training::kSequenceMost, "ropeScaling.originalLength");
}

}  // namespace

Status ModelConfig::validate() const {
  if (family != "gpt2" && family != "llama")
    return Error(Code::kInvalid, "unknown model family '" + family + "': gpt2 or llama");
  TRY_OK(positive(layers, training::kLayersMost, "layers"));
  TRY_OK(positive(heads, training::kHeadsMost, "heads"));
  TRY_OK(positive(hidden, training::kHiddenMost, "hidden"));
  TRY_OK(positive(vocabulary, training::kVocabularyMost, "vocabulary"));
  TRY_OK(positive(sequence_length, training::kSequenceMost, "sequenceLength"));
  if (hidden % heads != 0)
    return Error(Code::kInvalid, "hidden " + std::to_string(hidden) + " is not a multiple of " +
                                     counted(heads, "head"));
  if (!(norm_epsilon > 0 && norm_epsilon <= 1))
    return Error(Code::kInvalid, "normEpsilon must be above 0 and at most 1");
  return family == "llama" ? validate_llama(*this) : ok();
}

Result<ModelConfig> model_preset(const std::string& name) {
  if (name == "kjv") return ModelConfig{};
  if (name == "tiny")
    return ModelConfig{.layers = 2, .heads = 4, .hidden = 64, .sequence_length = 32};
  std::string known = "kjv, tiny";
  for (const training::Preset& preset : training::kPresets) {
    known += ", " + std::string(preset.name);
    if (name != preset.name) continue;
    ModelConfig config{.layers = preset.layers, .heads = preset.heads, .hidden = preset.hidden};
    config.vocabulary = preset.vocabulary;
    if (preset.vocabulary > 257) config.sequence_length = 1024;
    if (name.starts_with("llama-")) {
      config.family = "llama";
      config.kv_heads = preset.llama.kv_heads;
      config.mlp_hidden = preset.llama.mlp_hidden;
      config.rope_theta = preset.llama.rope_theta;
      config.rope_scaling.factor = preset.llama.rope_factor;
      config.has_tied_head = preset.llama.has_tied_head;
    }
    return config;
  }
  return Error(Code::kInvalid, "unknown model preset '" + name + "': " + known);
}

MicroLoss make_micro_loss(float mean) {
  MicroLoss loss;
  loss.mean = mean;
  // Beyond 2^16 the sum over micro-batches could leave 64 bits; a loss that large is broken anyway.
  loss.is_finite = mean > -65536.0f && mean < 65536.0f;
  if (loss.is_finite) loss.fixed = std::llrint(static_cast<double>(mean) * kLossScale);
  return loss;
}

double step_loss(std::int64_t fixed_sum, std::int64_t micro_batches) {
  return static_cast<double>(fixed_sum) / kLossScale / static_cast<double>(micro_batches);
}

}  // namespace rubato::worker
