// Text from a model: feeds the last sequence_length tokens again for each new one (no key-value
// cache), so it is simple and costs one forward pass per token.
#pragma once

#include "worker/model/model.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace rubato::worker {

struct GenerateOptions {
  std::int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // 0: all
  std::uint64_t seed = 1;
  std::int32_t end_token = -1;  // stop when it comes; -1: never
};

// The new tokens. `on_token` (may be empty) is told each as it comes. kInvalid: the prompt is
// empty, or what the model gives is not finite. Equal (parameters, prompt, options) give equal
// tokens.
Result<std::vector<std::int32_t>> generate(Stream& stream, Model& model, ConstBuffer parameters,
                                           std::vector<std::int32_t> prompt,
                                           const GenerateOptions& options,
                                           const std::function<void(std::int32_t)>& on_token = {});

}  // namespace rubato::worker
