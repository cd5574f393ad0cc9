// TrainingJobSpec: what a person asks for (docs/api.md says the same in tables). Defaults here are
// the defaults that the CRD fills in. Plain values; copying is cheap except for `pod_template`,
// which shares its content.
#pragma once

#include "common/clock.h"
#include "operator/api/enums.h"
#include "operator/api/schema.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

struct GpusSpec {
  std::int32_t min = 1;
  std::int32_t max = 1;
  std::int32_t per_pod = 1;  // GPUs that come and go together
  GpuShape shape = GpuShape::kAny;

  static const ObjectSchema& schema();
  bool operator==(const GpusSpec&) const = default;
};

struct AcceleratorsSpec {
  std::vector<std::string> allow;  // values of the node label nvidia.com/gpu.product; empty: any
  bool mix = false;                // may span several types at once

  static const ObjectSchema& schema();
  bool operator==(const AcceleratorsSpec&) const = default;
};

struct TopologySpec {
  std::string level;  // a name from the operator's configured list
  TopologyMode mode = TopologyMode::kPreferred;

  static const ObjectSchema& schema();
  bool operator==(const TopologySpec&) const = default;
};

struct ObjectiveSpec {
  double weight = 1.0;
  std::optional<WallTime> deadline;

  static const ObjectSchema& schema();
  bool operator==(const ObjectiveSpec&) const = default;
};

// Llama 3's stretch of the rotary embedding to longer texts.
struct RopeScalingSpec {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::int32_t original_length = 8192;  // tokens

  static const ObjectSchema& schema();
  bool operator==(const RopeScalingSpec&) const = default;
};

// Either a preset, or layers, hidden and heads. See explicit_model().
struct ModelSpec {
  ModelFamily family = ModelFamily::kGpt2;
  std::string preset;
  std::optional<std::int32_t> layers, hidden, heads,
      vocab;  // vocab unset: 257, bytes and end of text
  // Of family llama alone.
  std::optional<std::int32_t> kv_heads;    // unset: as many as heads
  std::optional<std::int32_t> mlp_hidden;  // set, unless there is a preset
  std::optional<double> rope_theta;        // unset: 10 000
  std::optional<RopeScalingSpec> rope_scaling;
  std::optional<double> norm_epsilon;  // unset: 1e-5
  std::optional<bool> tie_embeddings;  // unset: false
  std::string init_from;               // folder of safetensors to start from; empty: random

  static const ObjectSchema& schema();
  bool operator==(const ModelSpec&) const = default;
};

struct DataSpec {
  std::string path;  // file or folder of tokens, as the worker pod sees it
  double validation_fraction = 0.0;

  static const ObjectSchema& schema();
  bool operator==(const DataSpec&) const = default;
};

struct BatchSpec {
  std::int32_t global = 0;              // sequences in a step (runtime pytorch: samples)
  std::int32_t micro = 0;               // sequences in a logical micro-batch; divides global
  std::int32_t sequence_length = 1024;  // of runtime builtin
  // How many micro-batches a step has: also the most GPUs that can work on it.
  std::int32_t micro_batches() const { return micro > 0 ? global / micro : 0; }
  // What the worker's exact sum can add up (worker/model/exact_sum.h).
  static constexpr std::int32_t kMicroBatchesMax = 8192;

  static const ObjectSchema& schema();
  bool operator==(const BatchSpec&) const = default;
};

struct ScheduleSpec {
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::kCosine;
  std::optional<std::int64_t> decay_steps;  // where it ends; unset: see TrainingJobStatus
  double min_learning_rate = 0.0;

  static const ObjectSchema& schema();
  bool operator==(const ScheduleSpec&) const = default;
};

struct OptimizerSpec {
  OptimizerName name = OptimizerName::kAdamW;
  double learning_rate = 3e-4;
  std::vector<double> betas{0.9, 0.95};
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double gradient_clip = 1.0;  // largest global norm; 0: off
  ScheduleSpec schedule;

  static const ObjectSchema& schema();
  bool operator==(const OptimizerSpec&) const = default;
};

struct StopSpec {
  std::int64_t steps = 0;

  static const ObjectSchema& schema();
  bool operator==(const StopSpec&) const = default;
};

// "auto" or a degree.
struct AutoOr {
  std::optional<std::int32_t> degree;  // unset: auto
  bool operator==(const AutoOr&) const = default;
};

struct ParallelismSpec {
  AutoOr tensor, pipeline, sharding;

  static const ObjectSchema& schema();
  bool operator==(const ParallelismSpec&) const = default;
};

struct CheckpointSpec {
  std::int64_t every = 500;  // steps
  std::string path;          // folder, as the worker pod sees it; empty: no checkpoints
  std::int32_t keep = 3;
  std::int64_t give_up_after = 1800;  // seconds of tries to write the last one

  static const ObjectSchema& schema();
  bool operator==(const CheckpointSpec&) const = default;
};

// What the builtin trainer does. A script of runtime pytorch heeds batch, stop, seed,
// evaluate_every and checkpoint; the rest stands at its defaults and says nothing there.
struct TrainingSpec {
  std::optional<ModelSpec> model;  // set exactly when runtime is builtin
  std::optional<DataSpec> data;    // the same
  BatchSpec batch;
  OptimizerSpec optimizer;
  StopSpec stop;
  std::int64_t seed = 0;
  std::int64_t evaluate_every = 0;  // steps between evaluations on the validation split; 0: never
  Precision precision = Precision::kF32;
  ParallelismSpec parallelism;
  Reduce reduce = Reduce::kExact;
  CheckpointSpec checkpoint;

  static const ObjectSchema& schema();
  bool operator==(const TrainingSpec&) const = default;
};

struct FaultToleranceSpec {
  std::int32_t tolerate = 0;       // simultaneous losses that must not cost a checkpoint
  std::int32_t max_restarts = 10;  // failures that are the job's own, not the infrastructure's

  static const ObjectSchema& schema();
  bool operator==(const FaultToleranceSpec&) const = default;
};

struct TrainingJobSpec {
  std::string queue = "default";
  std::string priority_class_name;
  bool suspend = false;
  bool preemptible = true;           // false: once it runs it is never stopped for another job
  std::int64_t min_run_seconds = 0;  // nor so long after its start
  GpusSpec gpus;
  AcceleratorsSpec accelerators;
  std::optional<TopologySpec> topology;
  ObjectiveSpec objective;
  Runtime runtime = Runtime::kBuiltin;
  std::optional<TrainingSpec> training;  // set exactly when runtime is builtin or pytorch
  FaultToleranceSpec fault_tolerance;
  std::int64_t park_seconds = 300;         // how long a job below min holds its state
  std::int64_t grace_period_seconds = 60;  // for the checkpoint on suspend and delete
  std::optional<std::int64_t> active_deadline_seconds;
  std::optional<std::int64_t> ttl_seconds_after_finished;
  json::Value pod_template;  // `template`: a PodTemplateSpec, kept as it is (pod_template.h)

  bool is_rigid() const { return gpus.min == gpus.max; }

  static const ObjectSchema& schema();
  bool operator==(const TrainingJobSpec&) const = default;
};

// The same model with all numbers written out and no preset. kInvalid for an unknown preset or an
// incomplete set; the API server refuses both, so this is for programs without one.
Result<ModelSpec> explicit_model(const ModelSpec& model);
// Floating-point operations of forward and backward per token, of what explicit_model() gives.
double flops_per_token(const ModelSpec& model, std::int32_t sequence_length);

struct ModelPreset {
  std::string_view name;
  ModelSpec model;         // as explicit_model() gives it
  std::string_view about;  // one line for docs/api.md
};
const std::vector<ModelPreset>& model_presets();

}  // namespace rubato::api
