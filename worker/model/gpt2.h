// GPT-2 as Hugging Face defines it (pre-layernorm blocks, learned positions, gelu_new, tied head,
// no dropout), written once over Kernels for every device.
//
// Shapes: n = micro_batch * sequence_length tokens, c = hidden. Weights are [in, out] as in Hugging
// Face's Conv1D, so nothing is transposed between memory and checkpoint. The rows of the token
// table are padded to a multiple of 64; the padding is zero, gets zero gradient, and its logits
// count for nothing.
#pragma once

#include "worker/model/model.h"

#include <vector>

namespace rubato::worker {

class Gpt2 : public Model {
 public:
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, std::int64_t micro_batch,
                                               Device& device);

  const ModelConfig& config() const override { return config_; }
  const ParameterTable& table() const override { return table_; }
  std::int64_t micro_batch() const override { return micro_batch_; }
  void init(std::uint64_t seed, std::span<float> parameters) const override;
  Result<MicroLoss> forward_backward(Stream& stream, std::span<const std::int32_t> tokens,
                                     ConstBuffer parameters, Buffer gradient) override;
  Result<MicroLoss> evaluate(Stream& stream, std::span<const std::int32_t> tokens,
                             ConstBuffer parameters) override;
  Status logits(Stream& stream, std::span<const std::int32_t> tokens, ConstBuffer parameters,
                std::vector<float>& out) override;
  double flops_per_token() const override;

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
  // One pass over `batch` sequences of `length` tokens, on the first rows of every buffer.
  struct Pass {
    std::int64_t batch;
    std::int64_t length;
    std::int64_t rows() const { return batch * length; }
  };

  Gpt2(const ModelConfig& config, std::int64_t micro_batch, Device& device);
  void lay_out();
  Status allocate();
  Status check_tokens(std::span<const std::int32_t> tokens, std::size_t wanted) const;
  void upload(Stream& stream, std::span<const std::int32_t> tokens);

  void forward(Stream& stream, const Pass& pass, ConstBuffer parameters);
  void block_forward(Stream& stream, const Pass& pass, ConstBuffer parameters, std::size_t layer);
  // Head and loss over all rows, in chunks; with a gradient buffer also their backward pass, which
  // leaves the gradient of the last layernorm's output in grad_norm_.
  void head(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient);
  void block_backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient,
                      std::size_t layer);
  // gradient of y = x w + b for `rows` rows: weight, bias, and x unless dx is empty.
  void linear_backward(Stream& stream, const Pass& pass, ConstBuffer x, ConstBuffer dy,
                       std::size_t weight, std::size_t bias, ConstBuffer parameters,
                       Buffer gradient, Buffer dx);
  Result<MicroLoss> read_loss(Stream& stream, const Pass& pass);

  ConstBuffer weight(ConstBuffer flat, std::size_t index) const;
  Buffer part(Buffer flat, std::size_t index) const;
  AttentionShape attention(const Pass& pass) const;

  ModelConfig config_;
  std::int64_t micro_batch_;
  std::int64_t padded_vocabulary_;
  std::int64_t head_rows_;  // rows of logits that exist at a time
  Device& device_;
  Kernels& kernels_;
  ParameterTable table_;
  std::vector<BlockParameters> block_parameters_;
  std::size_t token_table_ = 0, position_table_ = 0, last_weight_ = 0, last_bias_ = 0;

  Arena arena_;
  std::vector<Block> blocks_;
  Buffer inputs_, targets_;  // i32 (n)
  Buffer last_input_, last_norm_, last_mean_, last_rstd_;
  Buffer branch_;                   // (n, c) what a branch adds to the residual
  Buffer logits_;                   // (head_rows, padded vocabulary)
  Buffer losses_;                   // (n)
  Buffer grad_stream_, grad_norm_;  // (n, c)
  Buffer grad_qkv_, grad_hidden_;   // (n, 3c), (n, 4c)
  Buffer attention_workspace_, embed_workspace_;
  std::vector<std::int32_t> host_inputs_, host_targets_;
  std::vector<float> host_losses_;
};

}  // namespace rubato::worker
