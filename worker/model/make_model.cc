#include "common/training_limits.h"
#include "common/words.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

namespace rubato::worker {

Result<std::unique_ptr<Model>> make_model(const ModelConfig& config, std::int64_t micro_batch,
                                          Device& device) {
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
  if (config.family == "llama") return Llama::create(config, micro_batch, device);
  return Gpt2::create(config, micro_batch, device);
}

Result<ParameterTable> parameter_table(const ModelConfig& config, Device& device) {
  TRY_OK(config.validate());
  return config.family == "llama" ? Llama::layout(config, device) : Gpt2::layout(config, device);
}

}  // namespace rubato::worker
