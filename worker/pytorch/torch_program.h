// TorchProgram: what a person's PyTorch script computes, as the step engine sees it. The script
// owns model, optimizer and data; the engine owns the memory in which their tensors lie, so that
// sums, comparisons, joins and checkpoints need no word of Python.
//
// Each call waits for the script and has its errors: what it raised, in one line; kCancelled when
// it has ended. One thread calls: the step thread.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// What may be said of a tensor: kTrained has gradients (parameters, tied ones once); kModel are all
// others of the model; kOptimizer those of the optimizer. They come in this order.
enum class TensorGroup : std::uint8_t { kTrained, kModel, kOptimizer };

struct TorchTensor {
  std::string name;   // as named_parameters() has it; "<key>.<parameter>" of the optimizer's
  std::string dtype;  // as safetensors has it: "F32", "BF16", …
  std::vector<std::int64_t> shape;
  TensorGroup group = TensorGroup::kTrained;
  bool in_state_dict = true;  // of the model; else it is the script's alone (an average, say)

  std::int64_t count() const;  // elements
  std::size_t bytes() const;   // 0 for a dtype that is not known
};

// Micro-batches that a request names ahead, at most: longer requests take the time that they save.
constexpr std::uint32_t kAheadMost = 64;

// What the script says of itself, once.
struct TorchSetup {
  std::int64_t micro_batch = 0;  // samples
  std::int64_t micro_batches = 0;
  std::int64_t samples = 0;  // in all
  std::uint64_t tokens_per_step = 0;
  std::uint64_t seed = 0;
  std::uint32_t validation_micro_batches = 0;
  double max_grad_norm = 0;     // 0: not clipped
  std::uint32_t ahead = 0;      // micro-batches that it loads before they are computed
  std::size_t extra_bytes = 0;  // room for all of its state that is no tensor
  std::string fingerprint;      // of what it computes with, a probe step included
  std::string model_config;     // config.json of a Hugging Face model; may be empty
  std::vector<TorchTensor> tensors;
};

// Where the script's tensors have to lie from now on.
struct TorchMemory {
  std::vector<std::byte*> tensors;  // in the order of TorchSetup::tensors
  std::vector<float*> gradients;    // of the trained ones
  std::span<float> gradient;        // all of these, with gaps that are zero and stay so
  std::byte* extra = nullptr;
};

// Where a worker stands among the members, and when the job ends, for the script's eyes; none: it
// is no member (yet).
struct MemberPlace {
  std::int64_t rank = -1;
  std::uint32_t members = 0;
  std::uint64_t stop_steps = 0;  // of the job, as far as is known here
};

struct MicroBatch {
  std::uint64_t step = 0;
  std::uint32_t micro = 0;
  std::vector<std::int64_t> samples;
};

// Of one micro-batch: its mean loss and 1, or a sum and the weight by which it is to be divided.
struct MicroBatchLoss {
  double loss = 0;
  std::int64_t weight = 1;
  bool ends = false;  // the script has ended the job: this step does not count
};

class TorchProgram {
 public:
  virtual ~TorchProgram() = default;
  // `training`: JSON of spec.training.
  virtual Result<TorchSetup> configure(const std::string& training) = 0;
  virtual Status bind(const TorchMemory& memory) = 0;
  // Fills the memory with the state before the first step.
  virtual Status init() = 0;
  // The memory was filled by somebody else: the state after `step` steps.
  virtual Status loaded(std::uint64_t step) = 0;
  // Leaves the gradient of that micro-batch in the memory, and changes nothing else. `ahead`: what
  // is likely to be asked for after it, in this order, so that it is loaded by then.
  virtual Result<MicroBatchLoss> compute(const MicroBatch& micro_batch,
                                         std::span<const MicroBatch> ahead) = 0;
  // One step of the optimizer, with the gradient in the memory times `factor`. Its learning rate.
  virtual Result<double> apply(std::uint64_t step, float factor, double loss, double norm,
                               MemberPlace place) = 0;
  virtual Result<double> validate(std::uint32_t micro) = 0;  // mean loss
  // Waits until the script looks at none of the memory: it may, between two steps. Returns at once
  // when it has ended.
  virtual void wait_until_idle() = 0;
  // Its loop has ended, or it is told so: it is asked nothing more, and writes the memory as it
  // likes.
  virtual bool is_over() = 0;
};

}  // namespace rubato::worker
