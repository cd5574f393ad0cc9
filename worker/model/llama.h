// Llama 2 and 3 as Hugging Face defines them (arXiv 2302.13971, 2307.09288, 2407.21783): RMSNorm
// before each branch, rotary positions, grouped-query attention, SwiGLU, no biases, a head that is
// tied to the token table or not. Weights are [out, in], as in Hugging Face's Linear.
//
// Queries, keys and values are one product: their matrices lie side by side in the flat buffer. So
// do those of the gate and of what it multiplies.
#pragma once

#include "worker/model/transformer.h"

#include <vector>

namespace rubato::worker {

class Llama : public Transformer {
 public:
  // kExhausted: no memory.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, std::int64_t micro_batch,
                                               Device& device, bool has_backward);
  static ParameterTable layout(const ModelConfig& config, Device& device);

 private:
  // What one block keeps for its backward pass; i = mlp_hidden.
  struct Block {
    Buffer input;     // (n, c) the residual stream as it enters
    Buffer norm1;     // (n, c)
    Buffer rstd1;     // (n)
    Buffer qkv;       // (n, columns), queries and keys turned
    Buffer scores;    // opaque, of the attention kernel
    Buffer attended;  // (n, c)
    Buffer middle;    // (n, c) the residual stream between attention and MLP
    Buffer norm2;     // (n, c)
    Buffer rstd2;     // (n)
    Buffer gate_up;   // (n, 2 i)
    Buffer gated;     // (n, i)
  };
  // [out, in] in the flat buffer: one tensor or several side by side.
  struct Matrix {
    std::int64_t offset = 0, in = 0, out = 0;
  };
  struct BlockParameters {
    std::size_t norm1, norm2;  // indices into the table
    Matrix qkv, out, gate_up, down;
  };

  Llama(const ModelConfig& config, std::int64_t micro_batch, Device& device, bool has_backward)
      : Transformer(config, micro_batch, device, has_backward) {}
  void lay_out();
  // Tensors of so many rows, `in` columns each, side by side.
  Matrix put_matrix(std::int64_t in,
                    const std::vector<std::pair<std::string, std::int64_t>>& tensors);
  Status allocate_blocks();
  Status upload_angles();
  double deviation(const Parameter&) const override { return 0.02; }
  void forward(Stream& stream, const Pass& pass, ConstBuffer parameters) override;
  void backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient) override;
  void block_forward(Stream& stream, const Pass& pass, ConstBuffer parameters, std::size_t layer);
  void block_backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient,
                      std::size_t layer);
  void linear(Stream& stream, const Pass& pass, const Matrix& matrix, ConstBuffer parameters,
              Buffer x, Buffer y);
  // gradient of y = x w^T: of w, and of x into dx.
  void linear_backward(Stream& stream, const Pass& pass, const Matrix& matrix, ConstBuffer x,
                       ConstBuffer dy, ConstBuffer parameters, Buffer gradient, Buffer dx);
  RotaryShape rotation(const Pass& pass, bool is_inverse) const;

  std::vector<BlockParameters> block_parameters_;
  std::size_t last_weight_ = 0;
  std::vector<Block> blocks_;
  Buffer angles_;                     // (sequence_length, head size), see Kernels::rotate
  Buffer last_rstd_;                  // (n)
  Buffer grad_gate_up_, grad_gated_;  // (n, 2 i), (n, i)
};

}  // namespace rubato::worker
