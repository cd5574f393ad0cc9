#include "common/training_limits.h"
#include "operator/api/job_spec.h"
#include "operator/api/schema_builder.h"

namespace rubato::api {

namespace {
constexpr double kMaxSteps = 1e12;
constexpr int kMaxPath = 1024;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) names.emplace_back(preset.name);
  return names;
}
}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> kAll = [] {
    std::vector<ModelPreset> all;
    for (const training::Preset& preset : training::kPresets)
      all.push_back({preset.name,
                     ModelFamily::kGpt2,
                     {preset.layers, preset.hidden, preset.heads, preset.vocabulary},
                     preset.about});
    return all;
  }();
  return kAll;
}

Result<ModelShape> model_shape(const ModelSpec& model) {
  if (!model.preset.empty()) {
    for (const ModelPreset& preset : model_presets())
      if (preset.name == model.preset) return preset.shape;
    return Error(Code::kInvalid, "training.model.preset: unknown preset " + model.preset);
  }
  if (!model.layers || !model.hidden || !model.heads)
    return Error(Code::kInvalid,
                 "training.model: set a preset, or all of layers, hidden and heads");
  return ModelShape{*model.layers, *model.hidden, *model.heads, model.vocab.value_or(257)};
}

const ObjectSchema& ModelSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ModelSpec> s("ModelSpec",
                               "The network: a preset, or all of layers, hidden and heads.");
    s.field("family", &ModelSpec::family, "Architecture.").defaulted();
    s.field("preset", &ModelSpec::preset, "Named sizes; excludes layers, hidden, heads and vocab.")
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
    s.field("global", &BatchSpec::global, "Sequences of a step. A multiple of micro.")
        .required()
        .at_least(1)
        .at_most(16777216);
    s.field("micro", &BatchSpec::micro, "Sequences of a logical micro-batch, the unit of work.")
        .required()
        .at_least(1)
        .at_most(training::kMicroBatchMost);
    s.field("sequenceLength", &BatchSpec::sequence_length, "Tokens of a sequence.")
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
    s.field("betas", &OptimizerSpec::betas, "Decay of the first and second moment, each in [0, 1).")
        .defaulted()
        .entries(2, 2);
    s.field("epsilon", &OptimizerSpec::epsilon, "Added to the root of the second moment.")
        .defaulted()
        .more_than(0)
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
    SchemaBuilder<TrainingSpec> s("TrainingSpec", "What the builtin runtime trains.");
    s.field("model", &TrainingSpec::model, "The network.").required().immutable();
    s.field("data", &TrainingSpec::data, "What is learned.").required().immutable();
    s.field("batch", &TrainingSpec::batch, "What one step computes.").required().immutable();
    s.field("optimizer", &TrainingSpec::optimizer, "How weights follow gradients.")
        .defaulted()
        .immutable();
    s.field("stop", &TrainingSpec::stop, "When training is done.").required();
    s.field("seed", &TrainingSpec::seed, "Of weights, dropout and the order of samples.")
        .defaulted()
        .immutable();
    s.field("evaluateEvery", &TrainingSpec::evaluate_every,
            "Steps between evaluations on the validation part; 0: never.")
        .defaulted()
        .immutable()
        .at_least(0)
        .at_most(kMaxSteps);
    s.field("precision", &TrainingSpec::precision, "Of the forward and backward pass.")
        .defaulted()
        .immutable();
    s.field("parallelism", &TrainingSpec::parallelism, "How the model is split.")
        .defaulted()
        .immutable();
    s.field("reduce", &TrainingSpec::reduce,
            "`exact`: loss and weights do not depend on the number of GPUs, bit for bit. `fast`: "
            "floating point, and the only choice when types are mixed.")
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
