#include "common/training_limits.h"
#include "operator/api/bounds.h"
#include "operator/api/job_spec.h"
#include "operator/api/schema_builder.h"

#include <algorithm>
#include <string_view>

namespace rubato::api {

namespace {
constexpr double kNormEpsilon = 1e-5;
constexpr double kRopeTheta = 10000;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) names.emplace_back(preset.name);
  return names;
}

ModelSpec model_of(const training::Preset& preset) {
  ModelSpec model;
  model.layers = preset.layers;
  model.hidden = preset.hidden;
  model.heads = preset.heads;
  model.vocab = preset.vocabulary;
  if (!preset.name.starts_with("llama-")) return model;
  model.family = ModelFamily::kLlama;
  model.kv_heads = preset.llama.kv_heads;
  model.mlp_hidden = preset.llama.mlp_hidden;
  model.rope_theta = preset.llama.rope_theta;
  if (preset.llama.rope_factor > 1)
    model.rope_scaling = RopeScalingSpec{.factor = preset.llama.rope_factor};
  model.norm_epsilon = kNormEpsilon;
  model.tie_embeddings = preset.llama.has_tied_head;
  return model;
}
}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> kAll = [] {
    std::vector<ModelPreset> all;
    all.reserve(training::kPresets.size());
    for (const training::Preset& preset : training::kPresets)
      all.push_back({preset.name, model_of(preset), preset.about});
    return all;
  }();
  return kAll;
}

Result<ModelSpec> explicit_model(const ModelSpec& model) {
  ModelSpec out = model;
  if (!model.preset.empty()) {
    const auto preset =
        std::ranges::find(model_presets(), std::string_view(model.preset), &ModelPreset::name);
    if (preset == model_presets().end())
      return Error(Code::kInvalid, "training.model.preset: unknown preset " + model.preset);
    out = preset->model;
    out.init_from = model.init_from;
    return out;
  }
  if (!model.layers || !model.hidden || !model.heads)
    return Error(Code::kInvalid,
                 "training.model: set a preset, or all of layers, hidden and heads");
  out.vocab = model.vocab.value_or(257);
  if (model.family != ModelFamily::kLlama) return out;
  if (!model.mlp_hidden) return Error(Code::kInvalid, "training.model: mlpHidden is not set");
  out.kv_heads = model.kv_heads.value_or(*model.heads);
  out.rope_theta = model.rope_theta.value_or(kRopeTheta);
  out.norm_epsilon = model.norm_epsilon.value_or(kNormEpsilon);
  out.tie_embeddings = model.tie_embeddings.value_or(false);
  return out;
}

double flops_per_token(const ModelSpec& model, std::int32_t sequence_length) {
  const double c = model.hidden.value_or(0);
  const double block =
      model.family == ModelFamily::kLlama
          ? training::llama_block_weights(
                c, c * model.kv_heads.value_or(0) / std::max(model.heads.value_or(1), 1),
                model.mlp_hidden.value_or(0))
          : training::gpt2_block_weights(c);
  return training::flops_per_token(model.layers.value_or(0), block, c, model.vocab.value_or(0),
                                   sequence_length);
}

const ObjectSchema& RopeScalingSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<RopeScalingSpec> s("RopeScalingSpec",
                                     "Llama 3's stretch of the rotary embedding to longer texts.");
    s.field("factor", &RopeScalingSpec::factor, "By how much long wavelengths grow.")
        .required()
        .at_least(1)
        .at_most(training::kRopeFactorMost);
    s.field("lowFrequencyFactor", &RopeScalingSpec::low_frequency_factor,
            "Wavelengths above originalLength over this grow by the whole factor.")
        .defaulted()
        .more_than(0)
        .at_most(training::kRopeFactorMost);
    s.field("highFrequencyFactor", &RopeScalingSpec::high_frequency_factor,
            "Wavelengths below originalLength over this stay as they are.")
        .defaulted()
        .more_than(0)
        .at_most(training::kRopeFactorMost);
    s.field("originalLength", &RopeScalingSpec::original_length,
            "Tokens of the texts that the model knew before.")
        .defaulted()
        .at_least(1)
        .at_most(training::kSequenceMost);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ModelSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ModelSpec> s(
        "ModelSpec",
        "The network: a preset, or all of layers, hidden and heads (family llama: and "
        "mlpHidden).");
    s.field("family", &ModelSpec::family, "Architecture.").defaulted();
    s.field("preset", &ModelSpec::preset, "Named sizes; excludes all other sizes.")
        .choices(preset_names());
    s.field("layers", &ModelSpec::layers, "Transformer blocks.")
        .at_least(1)
        .at_most(training::kLayersMost);
    s.field("hidden", &ModelSpec::hidden, "Width of the residual stream; a multiple of heads.")
        .at_least(1)
        .at_most(training::kHiddenMost);
    s.field("heads", &ModelSpec::heads, "Attention heads.")
        .at_least(1)
        .at_most(training::kHeadsMost);
    s.field("vocab", &ModelSpec::vocab,
            "Size of the vocabulary; unset: 257, bytes and end of text.")
        .at_least(2)
        .at_most(training::kVocabularyMost);
    s.field("kvHeads", &ModelSpec::kv_heads,
            "Heads of keys and values (family llama), a divisor of heads; unset: as many as heads.")
        .at_least(1)
        .at_most(training::kHeadsMost);
    s.field("mlpHidden", &ModelSpec::mlp_hidden,
            "Width of the MLP (family llama; intermediate_size in a config.json).")
        .at_least(training::kLlamaGrain)
        .at_most(training::kMlpHiddenMost);
    s.field("ropeTheta", &ModelSpec::rope_theta,
            "Base of the rotary embedding's frequencies (family llama); unset: 10000.")
        .at_least(1)
        .at_most(training::kRopeThetaMost);
    s.field("ropeScaling", &ModelSpec::rope_scaling,
            "How the rotary embedding is stretched (family llama); unset: not.");
    s.field("normEpsilon", &ModelSpec::norm_epsilon,
            "What RMSNorm adds to the mean square (family llama); unset: 1e-05.")
        .more_than(0)
        .at_most(training::kEpsilonMost);
    s.field("tieEmbeddings", &ModelSpec::tie_embeddings,
            "Whether the table of tokens is the matrix of the logits, too (family llama; gpt2: "
            "always); unset: false.");
    s.field("initFrom", &ModelSpec::init_from,
            "Folder of safetensors with Hugging Face names to start from; unset: random.")
        .length(0, kMaxPath);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& DataSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<DataSpec> s("DataSpec", "What is learned.");
    s.field("path", &DataSpec::path, "File or folder of tokens, as the worker pod sees it.")
        .required()
        .length(1, kMaxPath);
    s.field("validationFraction", &DataSpec::validation_fraction,
            "Part of the data, at its end, that is kept for evaluation.")
        .defaulted()
        .at_least(
            0);  // and at most: a rule, for the server would print the whole part of the bound
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& BatchSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<BatchSpec> s("BatchSpec", "What one step computes, whatever the number of GPUs.");
    s.field("global", &BatchSpec::global,
            "Sequences (runtime pytorch: samples) of a step. A multiple of micro.")
        .required()
        .at_least(1)
        .at_most(16777216);
    s.field("micro", &BatchSpec::micro,
            "Sequences (runtime pytorch: samples) of a logical micro-batch, the unit of work.")
        .required()
        .at_least(1)
        .at_most(training::kMicroBatchMost);
    s.field("sequenceLength", &BatchSpec::sequence_length,
            "Tokens of a sequence (runtime builtin).")
        .defaulted()
        .at_least(1)
        .at_most(training::kSequenceMost);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ScheduleSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ScheduleSpec> s("ScheduleSpec", "The learning rate as a function of the step.");
    s.field("warmupSteps", &ScheduleSpec::warmup_steps, "Steps of linear growth from 0.")
        .defaulted()
        .at_least(0)
        .at_most(kMaxSteps);
    s.field("decay", &ScheduleSpec::decay,
            "`cosine` from learningRate to minLearningRate at decaySteps, or `constant`.")
        .defaulted();
    s.field(
         "decaySteps", &ScheduleSpec::decay_steps,
         "Step at which the decay ends; minLearningRate holds from there. Unset: what stop.steps "
         "was when the job was first seen (status.decaySteps), so that a later change of "
         "stop.steps adds or cuts steps and does not bend the curve.")
        .at_least(1)
        .at_most(kMaxSteps);
    s.field("minLearningRate", &ScheduleSpec::min_learning_rate, "Where the decay ends.")
        .defaulted()
        .at_least(0);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& OptimizerSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<OptimizerSpec> s("OptimizerSpec", "How weights follow gradients.");
    s.field("name", &OptimizerSpec::name, "The optimizer.").defaulted();
    s.field("learningRate", &OptimizerSpec::learning_rate, "Highest learning rate.")
        .defaulted()
        .more_than(0)
        .at_most(training::kLearningRateMost);
    s.field("betas", &OptimizerSpec::betas,
            "Decay of the first and second moment, each in [0, 0.9999999].")
        .defaulted()
        .entries(2, 2);
    s.field("epsilon", &OptimizerSpec::epsilon, "Added to the root of the second moment.")
        .defaulted()
        .more_than(training::kEpsilonLeast)  // an integer 0 is compared with that as an integer
        .at_most(training::kEpsilonMost);
    s.field("weightDecay", &OptimizerSpec::weight_decay, "Decoupled; on matrices only.")
        .defaulted()
        .at_least(0)
        .at_most(training::kWeightDecayMost);
    s.field("gradientClip", &OptimizerSpec::gradient_clip, "Largest global norm; 0: no clipping.")
        .defaulted()
        .at_least(0);
    s.field("schedule", &OptimizerSpec::schedule, "Warm-up and decay.").defaulted();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ParallelismSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ParallelismSpec> s("ParallelismSpec",
                                     "Degrees of model parallelism: `auto`, or a number.");
    s.field("tensor", &ParallelismSpec::tensor, "GPUs that split each matrix.").defaulted();
    s.field("pipeline", &ParallelismSpec::pipeline, "GPUs that split the layers.").defaulted();
    s.field("sharding", &ParallelismSpec::sharding, "GPUs that split the optimizer state.")
        .defaulted();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TrainingSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TrainingSpec> s(
        "TrainingSpec",
        "What runtimes builtin and pytorch train. For pytorch it is batch, stop, seed, "
        "evaluateEvery and checkpoint alone: the script says the rest.");
    s.field("model", &TrainingSpec::model, "The network. Runtime builtin needs it.").immutable();
    s.field("data", &TrainingSpec::data, "What is learned. Runtime builtin needs it.").immutable();
    s.field("batch", &TrainingSpec::batch, "What one step computes.").required().immutable();
    s.field("optimizer", &TrainingSpec::optimizer, "How weights follow gradients.")
        .defaulted()
        .immutable();
    s.field("stop", &TrainingSpec::stop, "When training is done.").required();
    s.field("seed", &TrainingSpec::seed, "Of weights, dropout and the order of samples.")
        .defaulted()
        .immutable();
    s.field("evaluateEvery", &TrainingSpec::evaluate_every,
            "Steps between evaluations on the validation part (runtime pytorch: on what the script "
            "gives for it); 0: never.")
        .defaulted()
        .immutable()
        .at_least(0)
        .at_most(kMaxSteps);
    s.field(
         "precision", &TrainingSpec::precision,
         "Of the factors of matrix products, forward and backward: `bf16` rounds them and sums in "
         "f32. Weights, gradients and the optimizer's state are f32 in both. `bf16` needs GPUs, or "
         "processors with AVX512-BF16 or AMX.")
        .defaulted()
        .immutable();
    s.field("parallelism", &TrainingSpec::parallelism,
            "How the model is split; this release refuses degrees above 1.")
        .defaulted()
        .immutable();
    s.field("reduce", &TrainingSpec::reduce,
            "`exact`: loss and weights do not depend on the number of GPUs, bit for bit. This "
            "release refuses `fast`, sums in floating point.")
        .defaulted()
        .immutable();
    s.field("checkpoint", &TrainingSpec::checkpoint, "When and where state is saved.")
        .defaulted()
        .immutable();
    return s.build();
  }();
  return kSchema;
}

}  // namespace rubato::api
