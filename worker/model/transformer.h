// What the families of models share: buffers, tokens in, the head and its loss, logits out. A
// family says how its parameters lie (lay_out), which buffers it wants, and how inputs become the
// last norm's output and back.
//
// Shapes: n = micro_batch * sequence_length tokens, c = hidden. The rows of the token table (and of
// an output matrix of its own) are padded to a multiple of 64; the padding is zero, gets zero
// gradient, and its logits count for nothing.
#pragma once

#include "worker/model/model.h"

#include <span>
#include <vector>

namespace rubato::worker {

class Transformer : public Model {
 public:
  const ModelConfig& config() const override { return config_; }
  const ParameterTable& table() const override { return table_; }
  std::int64_t micro_batch() const override { return micro_batch_; }
  void init_tensor(std::uint64_t seed, const Parameter& entry, std::span<float> out) const override;
  Result<MicroLoss> forward_backward(Stream& stream, std::span<const std::int32_t> tokens,
                                     ConstBuffer parameters, Buffer gradient) override;
  Result<MicroLoss> evaluate(Stream& stream, std::span<const std::int32_t> tokens,
                             ConstBuffer parameters) override;
  Status logits(Stream& stream, std::span<const std::int32_t> tokens, ConstBuffer parameters,
                std::vector<float>& out) override;
  Status last_logits(Stream& stream, std::span<const std::int32_t> tokens, ConstBuffer parameters,
                     std::vector<float>& out) override;
  std::uint64_t untouched_bytes() const override;
  double flops_per_token() const override;

 protected:
  // One pass over `batch` sequences of `length` tokens, on the first rows of every buffer.
  struct Pass {
    std::int64_t batch;
    std::int64_t length;
    std::int64_t rows() const { return batch * length; }
  };

  Transformer(const ModelConfig& config, std::int64_t micro_batch, Device& device,
              bool has_backward);

  // Appends a tensor to the table; its index.
  std::size_t put(std::string name, std::vector<std::int64_t> shape, bool decays,
                  std::int64_t padded_rows = 0);
  // A buffer that allocate() will take. `buffer` may not move until then.
  void want(Buffer& buffer, std::int64_t count, DType type = DType::kF32);
  // The blocks whose buffers are wanted: without a backward pass one is enough for all, which
  // share_block() gives to the others once it is allocated.
  template <class Block>
  std::span<Block> kept_blocks(std::vector<Block>& blocks) const {
    return std::span(blocks).first(has_backward_ ? blocks.size() : 1);
  }
  template <class Block>
  void share_block(std::vector<Block>& blocks) const {
    for (std::size_t i = kept_blocks(blocks).size(); i < blocks.size(); ++i) blocks[i] = blocks[0];
  }
  // Takes all buffers that were wanted and those of this class. kExhausted: no memory.
  Status allocate();

  // The standard deviation of a matrix at the start.
  virtual double deviation(const Parameter& entry) const = 0;
  // From inputs_ to last_norm_.
  virtual void forward(Stream& stream, const Pass& pass, ConstBuffer parameters) = 0;
  // From grad_norm_, the gradient of last_norm_, to that of all parameters but the head's part.
  virtual void backward(Stream& stream, const Pass& pass, ConstBuffer parameters,
                        Buffer gradient) = 0;

  ConstBuffer weight(ConstBuffer flat, std::size_t index) const;
  Buffer part(Buffer flat, std::size_t index) const;
  AttentionShape attention(const Pass& pass) const;

  const ModelConfig config_;
  const std::int64_t micro_batch_;
  const std::int64_t padded_vocabulary_;
  const bool has_backward_;
  Device& device_;
  Kernels& kernels_;
  ParameterTable table_;
  std::size_t token_table_ = 0;
  std::size_t head_ = 0;  // the matrix of the logits: the token table where they are tied

  Buffer inputs_;                  // i32 (n)
  Buffer last_input_, last_norm_;  // (n, c) around the last norm
  Buffer branch_;                  // (n, c) what a branch adds to the residual
  // Of the backward pass, if there is one.
  Buffer grad_stream_, grad_norm_;  // (n, c)
  Buffer grad_qkv_;                 // (n, columns of qkv)
  Buffer attention_workspace_, embed_workspace_;

 private:
  struct Wish {
    Buffer* buffer;
    DType type;
    std::int64_t count;
  };
  Status check_tokens(std::span<const std::int32_t> tokens, std::size_t wanted) const;
  void upload(Stream& stream, std::span<const std::int32_t> tokens);
  // Head and loss over all rows, in chunks; with a gradient buffer also their backward pass, which
  // leaves the gradient of the last norm's output in grad_norm_.
  void head(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient);
  Result<MicroLoss> read_loss(Stream& stream, const Pass& pass);
  // One sequence, up to last_norm_.
  Status read_sequence(Stream& stream, std::span<const std::int32_t> tokens,
                       ConstBuffer parameters);
  // Logits of `rows` rows of it from `first`, a multiple of head_rows_: (rows, padded vocabulary).
  Buffer logits_of(Stream& stream, ConstBuffer parameters, std::int64_t first, std::int64_t rows);

  const std::int64_t head_rows_;  // rows of logits that exist at a time
  std::vector<Wish> wishes_;
  Arena arena_;
  Buffer targets_;  // i32 (n)
  Buffer logits_;   // (head_rows, padded vocabulary)
  Buffer losses_;   // (n)
  std::vector<std::int32_t> host_inputs_, host_targets_;
  std::vector<float> host_losses_;
};

}  // namespace rubato::worker
