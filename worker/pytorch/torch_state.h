// TorchState: all replicated state of a PyTorch job in one piece of memory, and its checkpoints:
//   model.safetensors      parameters (tied ones once) and buffers, as the model's state_dict()
//                          names them
//   optimizer.safetensors  the optimizer's tensors, exponents, those that no state_dict() has, and
//                          "extra": the rest, as JSON
// Builds before wrote all that is not the optimizer's into the first, as is done under numerics
// before version 3, so that they read it: either file may have either.
//   config.json            where the script gives one, so that from_pretrained() reads the folder
#pragma once

#include "worker/checkpoint/checkpoint.h"
#include "worker/model/parameter_table.h"
#include "worker/pytorch/torch_program.h"

#include <memory>
#include <mutex>

namespace rubato::worker {

// Where everything lies. Equal for equal setups.
class TorchLayout {
 public:
  // kInvalid names the tensor: two of a name, or of a dtype or size that cannot be held.
  static Result<TorchLayout> create(TorchSetup setup);

  const TorchSetup& setup() const { return setup_; }
  // Of the trained tensors; behind them one element, kWeightName, with the rest of its block: sums
  // of integers that are no gradient.
  const ParameterTable& table() const { return table_; }
  std::int64_t weight_offset() const { return weight_offset_; }          // of that element
  const std::vector<std::int64_t>& offsets() const { return offsets_; }  // bytes, of each tensor
  std::int64_t model_bytes() const { return model_bytes_; }  // trained and model, gaps included
  std::int64_t tensor_bytes() const { return tensor_bytes_; }
  // Names, types and shapes.
  std::uint64_t digest() const;

 private:
  TorchSetup setup_;
  ParameterTable table_;
  std::int64_t weight_offset_ = 0;
  std::vector<std::int64_t> offsets_;
  std::int64_t model_bytes_ = 0;
  std::int64_t tensor_bytes_ = 0;
};

class TorchState {
 public:
  // Zeroed. kExhausted: no memory. kInvalid: a device whose memory the host does not see.
  static Result<TorchState> create(Device& device, const TorchLayout& layout);

  std::vector<Buffer> sections() const { return {tensors_, exponents_, extra_}; }
  Buffer exponents() const { return exponents_; }
  std::byte* tensor(std::int64_t offset) const { return host_tensors_ + offset; }
  std::byte* extra() const { return host_extra_; }
  std::uint64_t step() const { return step_; }
  void set_step(std::uint64_t step) { step_ = step; }
  // Of the sections and the step; of the model's tensors alone.
  std::uint64_t digest() const;
  std::uint64_t weight_digest(const TorchLayout& layout) const;
  std::vector<std::span<std::byte>> bytes() const;  // of the sections
  void copy_from(const TorchState& other);

 private:
  Arena arena_;
  Buffer tensors_;
  Buffer exponents_;
  Buffer extra_;
  std::byte* host_tensors_ = nullptr;
  std::byte* host_exponents_ = nullptr;
  std::byte* host_extra_ = nullptr;
  std::uint64_t step_ = 0;
};

// As CheckpointStore::WriteFiles wants it. `numerics`: the version of the job's.
Result<FileDigests> write_torch_state(FileSystem& files, const std::string& directory,
                                      const TorchLayout& layout, const TorchState& state,
                                      int numerics);
// "CheckpointDamaged": see CheckpointFolder; kInvalid: tensors that are not the layout's.
Result<Checkpoint> load_torch_state(FileSystem& files, const std::string& path,
                                    const TorchLayout& layout, TorchState& state);

}  // namespace rubato::worker
