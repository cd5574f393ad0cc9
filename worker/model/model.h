// A language model as the step engine sees it: a table of parameters, and the gradient of one
// logical micro-batch. The parameters themselves belong to the caller (TrainingState), so a model
// holds only activations and may serve training and evaluation alike.
//
// Thread: one thread at a time. Memory: everything is allocated by make_model().
#pragma once

#include "worker/backend/device.h"
#include "worker/model/parameter_table.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rubato::json {
class Value;
}

namespace rubato::worker {

// Llama 3's stretch of the rotary embedding to longer texts (Hugging Face's rope_type "llama3"):
// wavelengths above original_length / low_frequency_factor are multiplied by `factor`, those below
// original_length / high_frequency_factor stay, and those between are interpolated.
struct RopeScaling {
  double factor = 1;  // 1: none, and the others mean nothing
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::int64_t original_length = 8192;  // tokens
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::string family = "gpt2";  // or "llama"
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t hidden = 192;
  std::int64_t vocabulary = 257;
  std::int64_t sequence_length = 128;  // tokens of one sample, and positions of the model
  float norm_epsilon = 1e-5f;          // of LayerNorm or RMSNorm

  // Llama alone; GPT-2 has them as they are here.
  std::int64_t kv_heads = 0;    // heads of keys and values; divides heads
  std::int64_t mlp_hidden = 0;  // width of the MLP
  double rope_theta = 10000;    // base of the rotary embedding's frequencies
  RopeScaling rope_scaling;
  bool has_tied_head = true;  // the logits' matrix is the token table

  bool operator==(const ModelConfig&) const = default;
  // kInvalid names the field.
  Status validate() const;
};
// The presets of docs/api.md (common/training_limits.h); "tiny" and "kjv" for tests and benchmarks.
Result<ModelConfig> model_preset(const std::string& name);
// The config.json of Hugging Face, and back. kInvalid names the member that is missing, or asks for
// what this program does not compute.
json::Value to_huggingface_config(const ModelConfig& config);
Result<ModelConfig> from_huggingface_config(const json::Value& config);

// The loss of one micro-batch: the mean over its tokens.
struct MicroLoss {
  float mean = 0;
  // mean * 2^40 rounded to an integer: sums of it are independent of order and grouping. The loss
  // of a step is sum(fixed) / (M * 2^40), see step_loss().
  std::int64_t fixed = 0;
  bool is_finite = true;  // false: fixed is 0
};
constexpr double kLossScale = 1099511627776.0;  // 2^40
MicroLoss make_micro_loss(float mean);
// The step's loss from the integer sum over its M micro-batches.
double step_loss(std::int64_t fixed_sum, std::int64_t micro_batches);

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ParameterTable& table() const = 0;
  // Samples in one micro-batch; fixed when the model was made.
  virtual std::int64_t micro_batch() const = 0;

  // One tensor of the table as training starts with it: normal 0.02 (GPT-2: residual projections
  // divided by sqrt(2 layers)); weights of norms 1, biases 0. A function of (config, seed) alone.
  virtual void init_tensor(std::uint64_t seed, const Parameter& entry,
                           std::span<float> out) const = 0;
  // All of them, flat_count() elements with the padding zero: on the host, or on a device through
  // memory of one tensor.
  void init(std::uint64_t seed, std::span<float> parameters) const;
  Status init(std::uint64_t seed, Device& device, Stream& stream, Buffer parameters) const;

  // Loss and gradient of one micro-batch. `tokens` holds micro_batch() rows of sequence_length + 1
  // tokens: inputs are the first sequence_length, targets the last. Overwrites all of `gradient`
  // (flat_count() f32, padding zero) with the gradient of the micro-batch's mean loss. Returns when
  // the stream has done the work. kInvalid: a token outside the vocabulary, a wrong count;
  // otherwise the device's error. A loss that is not finite is a value, not an error.
  virtual Result<MicroLoss> forward_backward(Stream& stream, std::span<const std::int32_t> tokens,
                                             ConstBuffer parameters, Buffer gradient) = 0;
  // The loss alone.
  virtual Result<MicroLoss> evaluate(Stream& stream, std::span<const std::int32_t> tokens,
                                     ConstBuffer parameters) = 0;
  // Logits of every position of one sequence of 1..sequence_length tokens: out has
  // tokens.size() * vocabulary elements.
  virtual Status logits(Stream& stream, std::span<const std::int32_t> tokens,
                        ConstBuffer parameters, std::vector<float>& out) = 0;
  // Of the last position alone, with the same bits: vocabulary elements.
  virtual Status last_logits(Stream& stream, std::span<const std::int32_t> tokens,
                             ConstBuffer parameters, std::vector<float>& out) = 0;

  // Of its memory, how many bytes at most it never touches (Kernels::attention_untouched).
  virtual std::uint64_t untouched_bytes() const { return 0; }
  // Floating-point operations of forward and backward per token: 6 N + 12 L H Q T (PaLM, nanoGPT).
  virtual double flops_per_token() const = 0;
};

// kInvalid: an unknown family or a bad configuration; kExhausted: no memory for the activations.
Result<std::unique_ptr<Model>> make_model(const ModelConfig& config, std::int64_t micro_batch,
                                          Device& device);

// One of a single sample that never computes gradients, in the memory of one block instead of all:
// forward_backward() of it is a broken invariant.
Result<std::unique_ptr<Model>> make_forward_model(const ModelConfig& config, Device& device);

// The table of such a model, without memory for activations. kInvalid: a bad configuration.
Result<ParameterTable> parameter_table(const ModelConfig& config, Device& device);

}  // namespace rubato::worker
