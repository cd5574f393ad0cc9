#include "worker/step/training_config.h"

#include "common/json.h"
#include "common/training_limits.h"

#include <algorithm>
#include <string>

namespace rubato::worker {

namespace {
// The operator writes all of these; the defaults are docs/api.md's.
void read_llama(const json::Value& spec, ModelConfig& model) {
  model.kv_heads = spec["kvHeads"].int_or(model.heads);
  model.mlp_hidden = spec["mlpHidden"].int_or(0);
  model.rope_theta = spec["ropeTheta"].double_or(model.rope_theta);
  model.norm_epsilon = static_cast<float>(spec["normEpsilon"].double_or(1e-5));
  model.has_tied_head = spec["tieEmbeddings"].bool_or(false);
  const json::Value& scaling = spec["ropeScaling"];
  RopeScaling& to = model.rope_scaling;
  to.factor = scaling["factor"].double_or(to.factor);
  to.low_frequency_factor = scaling["lowFrequencyFactor"].double_or(to.low_frequency_factor);
  to.high_frequency_factor = scaling["highFrequencyFactor"].double_or(to.high_frequency_factor);
  to.original_length = scaling["originalLength"].int_or(to.original_length);
}

Result<ModelConfig> model_of(const json::Value& spec) {
  ModelConfig model;
  const std::string preset = spec["preset"].string_or("");
  if (!preset.empty()) {
    TRY(model, model_preset(preset));
    return model;
  }
  model.family = spec["family"].string_or("gpt2");
  model.layers = spec["layers"].int_or(0);
  model.hidden = spec["hidden"].int_or(0);
  model.heads = spec["heads"].int_or(0);
  model.vocabulary = spec["vocab"].int_or(model.vocabulary);
  if (model.family == "llama") {
    read_llama(spec, model);
    return model;
  }
  for (const char* field :
       {"kvHeads", "mlpHidden", "ropeTheta", "ropeScaling", "normEpsilon", "tieEmbeddings"})
    if (!spec[field].is_null())
      return Error(Code::kInvalid, std::string("training.model.") + field +
                                       " is of family llama, the model is of " + model.family);
  return model;
}

Result<Precision> precision_of(const json::Value& spec) {
  const std::string word = spec.string_or("f32");
  if (word == "f32") return Precision::kF32;
  if (word == "bf16") return Precision::kBf16;
  return Error(Code::kInvalid,
               "training.precision \"" + word + "\" is not known; it must be f32 or bf16");
}

OptimizerConfig optimizer_of(const json::Value& spec, std::int64_t steps) {
  OptimizerConfig config;
  const json::Value& schedule = spec["schedule"];
  config.learning_rate = spec["learningRate"].double_or(3e-4);
  config.min_learning_rate = schedule["minLearningRate"].double_or(0);
  config.warmup_steps = schedule["warmupSteps"].int_or(0);
  config.decay_steps =
      schedule["decay"].string_or("cosine") == "cosine" ? schedule["decaySteps"].int_or(steps) : 0;
  config.beta1 = spec["betas"][std::size_t{0}].double_or(0.9);
  config.beta2 = spec["betas"][std::size_t{1}].double_or(0.95);
  config.epsilon = spec["epsilon"].double_or(1e-8);
  config.weight_decay = spec["weightDecay"].double_or(0.1);
  config.clip_norm = spec["gradientClip"].double_or(1.0);
  return config;
}

enum class Form { kNumber, kText, kObject, kNumbers, kTextOrNumber, kBool };
struct Field {
  std::string_view path;
  Form form;
};
// All that a training spec can say. What is not here would be trained otherwise than was asked.
constexpr Field kFields[] = {
    {"model", Form::kObject},
    {"model.family", Form::kText},
    {"model.preset", Form::kText},
    {"model.layers", Form::kNumber},
    {"model.hidden", Form::kNumber},
    {"model.heads", Form::kNumber},
    {"model.vocab", Form::kNumber},
    {"model.kvHeads", Form::kNumber},
    {"model.mlpHidden", Form::kNumber},
    {"model.ropeTheta", Form::kNumber},
    {"model.ropeScaling", Form::kObject},
    {"model.ropeScaling.factor", Form::kNumber},
    {"model.ropeScaling.lowFrequencyFactor", Form::kNumber},
    {"model.ropeScaling.highFrequencyFactor", Form::kNumber},
    {"model.ropeScaling.originalLength", Form::kNumber},
    {"model.normEpsilon", Form::kNumber},
    {"model.tieEmbeddings", Form::kBool},
    {"model.initFrom", Form::kText},
    {"data", Form::kObject},
    {"data.path", Form::kText},
    {"data.validationFraction", Form::kNumber},
    {"batch", Form::kObject},
    {"batch.global", Form::kNumber},
    {"batch.micro", Form::kNumber},
    {"batch.sequenceLength", Form::kNumber},
    {"optimizer", Form::kObject},
    {"optimizer.name", Form::kText},
    {"optimizer.learningRate", Form::kNumber},
    {"optimizer.betas", Form::kNumbers},
    {"optimizer.epsilon", Form::kNumber},
    {"optimizer.weightDecay", Form::kNumber},
    {"optimizer.gradientClip", Form::kNumber},
    {"optimizer.schedule", Form::kObject},
    {"optimizer.schedule.warmupSteps", Form::kNumber},
    {"optimizer.schedule.decay", Form::kText},
    {"optimizer.schedule.decaySteps", Form::kNumber},
    {"optimizer.schedule.minLearningRate", Form::kNumber},
    {"stop", Form::kObject},
    {"stop.steps", Form::kNumber},
    {"seed", Form::kNumber},
    {"evaluateEvery", Form::kNumber},
    {"precision", Form::kText},
    {"parallelism", Form::kObject},
    {"parallelism.tensor", Form::kTextOrNumber},
    {"parallelism.pipeline", Form::kTextOrNumber},
    {"parallelism.sharding", Form::kTextOrNumber},
    {"reduce", Form::kText},
    {"checkpoint", Form::kObject},
    {"checkpoint.every", Form::kNumber},
    {"checkpoint.path", Form::kText},
    {"checkpoint.keep", Form::kNumber},
    {"checkpoint.giveUpAfter", Form::kNumber},
};

bool has_form(const json::Value& value, Form form) {
  switch (form) {
    case Form::kNumber:
      return value.is_number();
    case Form::kText:
      return value.is_string();
    case Form::kObject:
      return value.is_object();
    case Form::kNumbers:
      return value.is_array() &&
             std::ranges::all_of(value.items(), [](const auto& item) { return item.is_number(); });
    case Form::kTextOrNumber:
      return value.is_string() || value.is_number();
    case Form::kBool:
      return value.is_bool();
  }
  return false;
}

Status check_fields(const json::Value& object, const std::string& prefix) {
  for (const auto& [name, value] : object.members()) {
    const std::string path = prefix + name;
    const auto* known =
        std::ranges::find_if(kFields, [&](const Field& field) { return field.path == path; });
    if (known == std::end(kFields))
      return Error(Code::kInvalid, "this worker does not know training." + path);
    if (!has_form(value, known->form))
      return Error(Code::kInvalid, "training." + path + " has the wrong type");
    if (value.is_object()) TRY_OK(check_fields(value, path + "."));
  }
  return ok();
}

Status check(const TrainingConfig& config, const json::Value& spec) {
  if (config.has_model) {
    TRY_OK(config.model.validate());
    TRY_OK(config.optimizer.validate());
    if (config.data_path.empty()) return Error(Code::kInvalid, "data.path is missing");
  }
  if (config.stop_steps == 0) return Error(Code::kInvalid, "stop.steps must be at least 1");
  const SamplerConfig& sampler = config.sampler;
  if (sampler.global_batch < 1 || sampler.micro_batch < 1 ||
      sampler.global_batch % sampler.micro_batch != 0) {
    return Error(Code::kInvalid, "batch.global must be a multiple of batch.micro");
  }
  if (sampler.micro_batch > training::kMicroBatchMost)
    return Error(Code::kInvalid, "batch.micro is " + std::to_string(sampler.micro_batch) +
                                     ", but must lie in 1.." +
                                     std::to_string(training::kMicroBatchMost));
  const auto only = [&](const json::Value& value, const char* field, const char* word) -> Status {
    if (const std::string said = value.string_or(word); said != word)
      return Error(Code::kInvalid, std::string("training.") + field + " \"" + said +
                                       "\" is not possible here; it must be " + word);
    return ok();
  };
  TRY_OK(only(spec["reduce"], "reduce", "exact"));
  TRY_OK(only(spec["optimizer"]["name"], "optimizer.name", "adamw"));
  return ok();
}
}  // namespace

Result<TrainingConfig> parse_training(std::string_view text) {
  TRY(const json::Value spec, json::parse(text));
  if (!spec.is_object()) return Error(Code::kInvalid, "training is not an object");
  TRY_OK(check_fields(spec, ""));
  TrainingConfig config;
  const json::Value& batch = spec["batch"];
  config.has_model = !spec["model"].is_null() || !spec["data"].is_null();
  TRY(config.model, model_of(spec["model"]));
  config.model.sequence_length = batch["sequenceLength"].int_or(1024);
  config.init_from = spec["model"]["initFrom"].string_or("");
  config.data_path = spec["data"]["path"].string_or("");
  TRY(config.precision, precision_of(spec["precision"]));
  config.seed = static_cast<std::uint64_t>(spec["seed"].int_or(0));
  config.stop_steps = static_cast<std::uint64_t>(spec["stop"]["steps"].int_or(0));
  config.sampler.seed = config.seed;
  config.sampler.global_batch = batch["global"].int_or(0);
  config.sampler.micro_batch = batch["micro"].int_or(0);
  config.sampler.sequence_length = config.model.sequence_length;
  config.sampler.validation_fraction = spec["data"]["validationFraction"].double_or(0);
  config.optimizer = optimizer_of(spec["optimizer"], static_cast<std::int64_t>(config.stop_steps));
  config.evaluate_every = static_cast<std::uint64_t>(spec["evaluateEvery"].int_or(0));
  const json::Value& checkpoint = spec["checkpoint"];
  config.checkpoint_every = static_cast<std::uint64_t>(checkpoint["every"].int_or(0));
  config.checkpoint_path = checkpoint["path"].string_or("");
  config.checkpoint_keep = static_cast<int>(checkpoint["keep"].int_or(3));
  config.checkpoint_give_up_seconds = checkpoint["giveUpAfter"].int_or(1800);
  TRY_OK(check(config, spec));
  return config;
}

}  // namespace rubato::worker
