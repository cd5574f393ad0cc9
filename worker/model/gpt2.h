// GPT-2 as Hugging Face defines it (pre-layernorm blocks, learned positions, gelu_new, tied head,
// no dropout), written once over Kernels for every device. Weights are [in, out] as in Hugging
// Face's Conv1D, so nothing is transposed between memory and checkpoint.
#pragma once

#include "worker/model/transformer.h"

#include <vector>

namespace rubato::worker {

class Gpt2 : public Transformer {
 public:
  // kExhausted: no memory.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, std::int64_t micro_batch,
                                               Device& device, bool has_backward);
  static ParameterTable layout(const ModelConfig& config, Device& device);

 private:
  // What one block keeps for its backward pass.
  struct Block {
    Buffer input;         // (n, c) the residual stream as it enters
    Buffer norm1;         // (n, c)
    Buffer mean1, rstd1;  // (n)
    Buffer qkv;           // (n, 3c)
    Buffer scores;        // opaque, of the attention kernel
    Buffer attended;      // (n, c)
    Buffer middle;        // (n, c) the residual stream between attention and MLP
    Buffer norm2;         // (n, c)
    Buffer mean2, rstd2;  // (n)
    Buffer hidden, gelu;  // (n, 4c)
  };
  // Indices into the table.
  struct BlockParameters {
    std::size_t norm1_weight, norm1_bias, qkv_weight, qkv_bias, out_weight, out_bias;
    std::size_t norm2_weight, norm2_bias, up_weight, up_bias, down_weight, down_bias;
  };

  Gpt2(const ModelConfig& config, std::int64_t micro_batch, Device& device, bool has_backward)
      : Transformer(config, micro_batch, device, has_backward) {}
  void lay_out();
  Status allocate_blocks();
  double deviation(const Parameter& entry) const override;
  void forward(Stream& stream, const Pass& pass, ConstBuffer parameters) override;
  void backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient) override;
  void block_forward(Stream& stream, const Pass& pass, ConstBuffer parameters, std::size_t layer);
  void block_backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient,
                      std::size_t layer);
  // gradient of y = x w + b for `rows` rows: weight, bias, and x unless dx is empty.
  void linear_backward(Stream& stream, const Pass& pass, ConstBuffer x, ConstBuffer dy,
                       std::size_t weight, std::size_t bias, ConstBuffer parameters,
                       Buffer gradient, Buffer dx);

  std::vector<BlockParameters> block_parameters_;
  std::size_t position_table_ = 0, last_weight_ = 0, last_bias_ = 0;
  std::vector<Block> blocks_;
  Buffer last_mean_, last_rstd_;  // (n)
  Buffer grad_hidden_;            // (n, 4c)
};

}  // namespace rubato::worker
