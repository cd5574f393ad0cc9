// config.json of Hugging Face transformers, one pair of functions a family.
#include "common/json.h"
#include "common/words.h"
#include "worker/model/model.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <span>

namespace rubato::worker {

namespace {

// Decimal as people write it: 1e-05, not all digits of the nearest float. Reads back as it was.
double plain(float x) {
  char text[32];
  const auto written = std::to_chars(std::begin(text), std::end(text), x);
  double out = 0;
  std::from_chars(text, written.ptr, out);
  return out;
}

Error refused_member(const std::string& member, const json::Value& found, const std::string& why) {
  return Error(Code::kInvalid,
               "config.json: " + member + " is " + excerpt(json::dump(found)) + why);
}

// A member that, where it is there, must say what this program computes. 16.0 is 16.
template <class T>
Status must_be(const json::Value& config, const char* member, const T& wanted) {
  const json::Value& found = config[member];
  const json::Value ours(wanted);
  const bool is_same_number =
      found.is_number() && ours.is_number() && found.double_or(0) == ours.double_or(0);
  if (found.is_null() || found == ours || is_same_number) return ok();
  return refused_member(member, found,
                        ", this program computes with " + json::dump(ours) + " only");
}

// Files that other programs wrote anew have 8192.0, too.
Result<std::int64_t> integer_of(const json::Value& found, const char* member) {
  constexpr double kExactMost = 9007199254740992.0;  // 2^53
  if (found.is_null())
    return Error(Code::kInvalid, std::string("config.json: ") + member + " is missing");
  if (found.is_int()) return found.int_or(0);
  const double value = found.double_or(0.5);
  if (value != std::floor(value) || std::abs(value) > kExactMost)
    return refused_member(member, found, ", which is no integer");
  return static_cast<std::int64_t>(value);
}

Result<std::int64_t> integer(const json::Value& config, const char* member) {
  return integer_of(config[member], member);
}

// Members that may be absent or null. What is there has its type: a text that looks like a number
// would else be computed with the fallback, and nobody told.
Result<std::int64_t> integer_or(const json::Value& config, const char* member,
                                std::int64_t fallback) {
  return config[member].is_null() ? fallback : integer(config, member);
}

Result<float> number_or(const json::Value& config, const char* member, double fallback) {
  const json::Value& found = config[member];
  if (!found.is_null() && !found.is_number())
    return refused_member(member, found, ", which is no number");
  return static_cast<float>(found.double_or(fallback));
}

Result<bool> boolean_or(const json::Value& config, const char* member, bool fallback) {
  const json::Value& found = config[member];
  if (!found.is_null() && !found.is_bool())
    return refused_member(member, found, ", which is neither true nor false");
  return found.bool_or(fallback);
}

json::Value gpt2_to_json(const ModelConfig& config) {
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
      {"layer_norm_epsilon", plain(config.norm_epsilon)},
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

Result<ModelConfig> gpt2_from_json(const json::Value& config) {
  ModelConfig out;
  TRY(out.layers, integer(config, "n_layer"));
  TRY(out.heads, integer(config, "n_head"));
  TRY(out.hidden, integer(config, "n_embd"));
  TRY(out.vocabulary, integer(config, "vocab_size"));
  TRY(out.sequence_length, integer(config, "n_positions"));
  TRY(out.norm_epsilon, number_or(config, "layer_norm_epsilon", 1e-5));
  TRY_OK(must_be(config, "activation_function", "gelu_new"));
  TRY_OK(must_be(config, "add_cross_attention", false));
  TRY_OK(must_be(config, "scale_attn_weights", true));
  TRY_OK(must_be(config, "scale_attn_by_inverse_layer_idx", false));
  TRY_OK(must_be(config, "tie_word_embeddings", true));
  TRY_OK(out.validate());  // so that the width of the MLP can be computed
  TRY_OK(must_be(config, "n_inner", 4 * out.hidden));
  return out;
}

// transformers 5 has theta and scaling in "rope_parameters", earlier ones in "rope_theta" and
// "rope_scaling"; both are written, and either is read. Which of them counts where both are there
// depends on the version, so they must say the same.
json::Value rope_to_json(const ModelConfig& config) {
  json::Value rope = json::Value::object();
  if (config.rope_scaling.factor == 1) {
    rope.set("rope_type", "default");
  } else {
    rope.set("rope_type", "llama3");
    rope.set("factor", config.rope_scaling.factor);
    rope.set("low_freq_factor", config.rope_scaling.low_frequency_factor);
    rope.set("high_freq_factor", config.rope_scaling.high_frequency_factor);
    rope.set("original_max_position_embeddings", config.rope_scaling.original_length);
  }
  return rope;
}

// The number that the places agree on; null where none of them says any.
Result<json::Value> agreed(std::span<const json::Value* const> places, const char* member) {
  json::Value out;
  for (const json::Value* place : places) {
    const json::Value& found = (*place)[member];
    if (found.is_null()) continue;
    if (!found.is_number()) return refused_member(member, found, ", which is no number");
    if (out.is_null()) out = found;
    if (found.double_or(0) != out.double_or(0))
      return refused_member(member, out, " in one place and " + json::dump(found) + " in another");
  }
  return out;
}

// Of both; empty: there is neither.
Result<std::string> rope_type_of(std::span<const json::Value* const> ropes) {
  std::string out;
  for (const json::Value* rope : ropes) {
    if (rope->is_null()) continue;
    const std::string type = (*rope)["rope_type"].string_or((*rope)["type"].string_or(""));
    if (type != "default" && type != "llama3")
      return Error(Code::kInvalid, "config.json: rope_type is '" + excerpt(type) +
                                       "', this program computes with default and llama3 only");
    if (!out.empty() && type != out)
      return Error(Code::kInvalid, "config.json: rope_type is '" + out +
                                       "' in rope_parameters and '" + type + "' in rope_scaling");
    out = type;
  }
  return out;
}

Status rope_from_json(const json::Value& config, ModelConfig& out) {
  const json::Value* const places[] = {&config["rope_parameters"], &config["rope_scaling"],
                                       &config};
  const auto ropes = std::span(places).first(2);
  TRY(const json::Value theta, agreed(places, "rope_theta"));
  out.rope_theta = theta.double_or(10000);
  for (const json::Value* place : places) TRY_OK(must_be(*place, "partial_rotary_factor", 1.0));
  TRY(const std::string type, rope_type_of(ropes));
  if (type != "llama3") return ok();
  TRY(const json::Value factor, agreed(ropes, "factor"));
  TRY(const json::Value low, agreed(ropes, "low_freq_factor"));
  TRY(const json::Value high, agreed(ropes, "high_freq_factor"));
  constexpr const char* kOriginal = "original_max_position_embeddings";
  TRY(const json::Value original, agreed(places, kOriginal));
  out.rope_scaling.factor = factor.double_or(0);
  out.rope_scaling.low_frequency_factor = low.double_or(0);
  out.rope_scaling.high_frequency_factor = high.double_or(0);
  TRY(out.rope_scaling.original_length, integer_of(original, kOriginal));
  if (out.rope_scaling.factor == 1) out.rope_scaling = {};
  return ok();
}

json::Value llama_to_json(const ModelConfig& config) {
  json::Value out = json::Value::object({
      {"architectures", json::Value::array({"LlamaForCausalLM"})},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"hidden_size", config.hidden},
      {"head_dim", config.hidden / config.heads},
      {"intermediate_size", config.mlp_hidden},
      {"max_position_embeddings", config.sequence_length},
      {"vocab_size", config.vocabulary},
      {"rms_norm_eps", plain(config.norm_epsilon)},
      {"rope_theta", config.rope_theta},
      {"tie_word_embeddings", config.has_tied_head},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"dtype", "float32"},
      {"torch_dtype", "float32"},
  });
  json::Value rope = rope_to_json(config);
  out.set("rope_scaling", config.rope_scaling.factor == 1 ? json::Value(nullptr) : rope);
  rope.set("rope_theta", config.rope_theta);
  out.set("rope_parameters", rope);
  return out;
}

Result<ModelConfig> llama_from_json(const json::Value& config) {
  ModelConfig out;
  out.family = "llama";
  TRY(out.layers, integer(config, "num_hidden_layers"));
  TRY(out.heads, integer(config, "num_attention_heads"));
  TRY(out.hidden, integer(config, "hidden_size"));
  TRY(out.mlp_hidden, integer(config, "intermediate_size"));
  TRY(out.vocabulary, integer(config, "vocab_size"));
  TRY(out.sequence_length, integer(config, "max_position_embeddings"));
  TRY(out.kv_heads, integer_or(config, "num_key_value_heads", out.heads));
  TRY(out.norm_epsilon, number_or(config, "rms_norm_eps", 1e-6));
  TRY(out.has_tied_head, boolean_or(config, "tie_word_embeddings", false));
  TRY_OK(must_be(config, "hidden_act", "silu"));
  TRY_OK(must_be(config, "attention_bias", false));
  TRY_OK(must_be(config, "mlp_bias", false));
  if (out.heads > 0) TRY_OK(must_be(config, "head_dim", out.hidden / out.heads));
  TRY_OK(rope_from_json(config, out));
  TRY_OK(out.validate());
  return out;
}

}  // namespace

json::Value to_huggingface_config(const ModelConfig& config) {
  return config.family == "llama" ? llama_to_json(config) : gpt2_to_json(config);
}

Result<ModelConfig> from_huggingface_config(const json::Value& config) {
  const std::string type = config["model_type"].string_or("");
  if (type != "gpt2" && type != "llama")
    return Error(Code::kInvalid, "config.json: model_type is '" + excerpt(type) +
                                     "', this program has gpt2 and llama");
  return type == "llama" ? llama_from_json(config) : gpt2_from_json(config);
}

}  // namespace rubato::worker
