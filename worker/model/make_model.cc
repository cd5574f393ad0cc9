#include "common/training_limits.h"
#include "common/words.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

#include <algorithm>

namespace rubato::worker {

void Model::init(std::uint64_t seed, std::span<float> parameters) const {
  CHECK_EQ(static_cast<std::int64_t>(parameters.size()), table().flat_count());
  std::ranges::fill(parameters, 0.0f);
  for (const Parameter& entry : table().entries())
    init_tensor(seed, entry,
                parameters.subspan(static_cast<std::size_t>(entry.offset),
                                   static_cast<std::size_t>(entry.count)));
}

Status Model::init(std::uint64_t seed, Device& device, Stream& stream, Buffer parameters) const {
  device.memset(stream, parameters, 0);
  std::vector<float> host(static_cast<std::size_t>(table().largest_count()));
  for (const Parameter& entry : table().entries()) {
    const auto tensor = std::span(host).first(static_cast<std::size_t>(entry.count));
    init_tensor(seed, entry, tensor);
    device.copy_to_device(stream, parameters.slice(entry.offset, entry.count), tensor.data());
    TRY_OK(stream.synchronize());
  }
  return ok();
}

namespace {

Result<std::unique_ptr<Model>> make_either(const ModelConfig& config, std::int64_t micro_batch,
                                           Device& device, bool has_backward) {
  TRY_OK(config.validate());
  if (micro_batch < 1 || micro_batch > training::kMicroBatchMost)
    return Error(Code::kInvalid, "a micro-batch of " + counted(micro_batch, "sample") +
                                     ": must lie in 1.." +
                                     std::to_string(training::kMicroBatchMost));
  const std::int64_t head_size = config.hidden / config.heads;
  if (const std::int64_t most = device.kernels().attention_head_size_max(); head_size > most)
    return Error(Code::kInvalid, "heads of " + std::to_string(head_size) +
                                     " elements: " + device.name() + " computes with " +
                                     std::to_string(most) + " at most (hidden / heads)");
  return config.family == "llama" ? Llama::create(config, micro_batch, device, has_backward)
                                  : Gpt2::create(config, micro_batch, device, has_backward);
}

}  // namespace

Result<std::unique_ptr<Model>> make_model(const ModelConfig& config, std::int64_t micro_batch,
                                          Device& device) {
  return make_either(config, micro_batch, device, true);
}

Result<std::unique_ptr<Model>> make_forward_model(const ModelConfig& config, Device& device) {
  return make_either(config, 1, device, false);
}

Result<ParameterTable> parameter_table(const ModelConfig& config, Device& device) {
  TRY_OK(config.validate());
  return config.family == "llama" ? Llama::layout(config, device) : Gpt2::layout(config, device);
}

}  // namespace rubato::worker
