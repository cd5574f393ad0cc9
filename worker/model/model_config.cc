#include "common/json.h"
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
  TRY_OK(positive(layers, 1024, "layers"));
  TRY_OK(positive(heads, 1024, "heads"));
  TRY_OK(positive(hidden, 1 << 16, "hidden"));
  TRY_OK(positive(vocabulary, 1 << 22, "vocabulary"));
  TRY_OK(positive(sequence_length, 1 << 20, "sequenceLength"));
  if (hidden % heads != 0)
    return Error(Code::kInvalid, "hidden " + std::to_string(hidden) + " is not a multiple of " +
                                     std::to_string(heads) + " heads");
  if (!(layernorm_epsilon > 0)) return Error(Code::kInvalid, "layernormEpsilon must be above 0");
  return ok();
}

Result<ModelConfig> model_preset(const std::string& name) {
  if (name == "kjv") return ModelConfig{};
  if (name == "tiny")
    return ModelConfig{.layers = 2, .heads = 4, .hidden = 64, .sequence_length = 32};
  // The names of docs/api.md.
  if (name == "gpt2-tiny") return ModelConfig{.layers = 2, .heads = 2, .hidden = 64};
  if (name == "gpt2-demo") return ModelConfig{.layers = 4, .heads = 4, .hidden = 192};
  if (name == "gpt2-10m") return ModelConfig{.layers = 6, .heads = 6, .hidden = 384};
  ModelConfig big{.vocabulary = 50257, .sequence_length = 1024};
  constexpr struct {
    const char* name;
    std::int64_t layers, heads, hidden;
  } kSizes[] = {{"gpt2-124m", 12, 12, 768},
                {"gpt2-350m", 24, 16, 1024},
                {"gpt2-774m", 36, 20, 1280},
                {"gpt2-1558m", 48, 25, 1600}};
  for (const auto& size : kSizes) {
    if (name != size.name) continue;
    big.layers = size.layers;
    big.heads = size.heads;
    big.hidden = size.hidden;
    return big;
  }
  return Error(Code::kInvalid, "unknown model preset '" + name +
                                   "': tiny, kjv, gpt2-124m, gpt2-350m, gpt2-774m or gpt2-1558m");
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
