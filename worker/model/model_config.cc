#include "common/json.h"
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

}  // namespace

Status ModelConfig::validate() const {
  if (family != "gpt2") return Error(Code::kInvalid, "unknown model family '" + family + "': gpt2");
  TRY_OK(positive(layers, training::kLayersMost, "layers"));
  TRY_OK(positive(heads, training::kHeadsMost, "heads"));
  TRY_OK(positive(hidden, training::kHiddenMost, "hidden"));
  TRY_OK(positive(vocabulary, training::kVocabularyMost, "vocabulary"));
  TRY_OK(positive(sequence_length, training::kSequenceMost, "sequenceLength"));
  if (hidden % heads != 0)
    return Error(Code::kInvalid, "hidden " + std::to_string(hidden) + " is not a multiple of " +
                                     counted(heads, "head"));
  if (!(layernorm_epsilon > 0)) return Error(Code::kInvalid, "layernormEpsilon must be above 0");
  return ok();
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
    return config;
  }
  return Error(Code::kInvalid, "unknown model preset '" + name + "': " + known);
}

json::Value to_huggingface_config(const ModelConfig& config) {
  return json::Value::object({
      {"architectures", json::Value::array({"GPT2LMHeadModel"})},
      {"model_type", "gpt2"},
      {"activation_function", "gelu_new"},
      {"n_layer", config.layers},
      {"n_head", config.heads},
      {"n_embd", config.hidden},
      {"n_inner", nullptr},
      {"n_positions", config.sequence_length},
      {"n_ctx", config.sequence_length},
      {"vocab_size", config.vocabulary},
      {"layer_norm_epsilon",
       std::round(static_cast<double>(config.layernorm_epsilon) * 1e12) / 1e12},
      {"attn_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"resid_pdrop", 0.0},
      {"scale_attn_weights", true},
      {"tie_word_embeddings", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"dtype", "float32"},
      {"torch_dtype", "float32"},
  });
}

Result<ModelConfig> from_huggingface_config(const json::Value& config) {
  if (config["model_type"].string_or("gpt2") != "gpt2")
    return Error(Code::kInvalid,
                 "model_type is '" + config["model_type"].string_or("") + "', not gpt2");
  const ModelConfig base;
  ModelConfig out;
  out.layers = config["n_layer"].int_or(base.layers);
  out.heads = config["n_head"].int_or(base.heads);
  out.hidden = config["n_embd"].int_or(base.hidden);
  out.vocabulary = config["vocab_size"].int_or(base.vocabulary);
  out.sequence_length = config["n_positions"].int_or(base.sequence_length);
  out.layernorm_epsilon = static_cast<float>(config["layer_norm_epsilon"].double_or(1e-5));
  TRY_OK(out.validate());
  return out;
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
