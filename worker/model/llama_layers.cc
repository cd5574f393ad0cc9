// The layers of Llama, forward and backward, as calls of kernels.
#include "worker/model/llama.h"

namespace rubato::worker {

RotaryShape Llama::rotation(const Pass& pass, bool is_inverse) const {
  const AttentionShape shape = attention(pass);
  return {.length = pass.length,
          .heads = shape.heads + shape.kv_heads,
          .head_size = shape.head_size,
          .columns = shape.columns(),
          .is_inverse = is_inverse};
}

void Llama::linear(Stream& stream, const Pass& pass, const Matrix& m, ConstBuffer parameters,
                   Buffer x, Buffer y) {
  const std::int64_t n = pass.rows();
  kernels_.gemm(stream, {.m = n, .n = m.out, .k = m.in, .transpose_b = true}, x.slice(0, n * m.in),
                parameters.slice(m.offset, m.in * m.out), {}, y.slice(0, n * m.out));
}

void Llama::forward(Stream& stream, const Pass& pass, ConstBuffer parameters) {
  const std::int64_t n = pass.rows();
  const std::int64_t c = config_.hidden;
  Block& block = blocks_[0];
  kernels_.embed_forward(stream, pass.length, c, inputs_.slice(0, n),
                         weight(parameters, token_table_), {}, block.input.slice(0, n * c));
  kernels_.rmsnorm_forward(stream, c, config_.norm_epsilon, block.input.slice(0, n * c),
                           weight(parameters, block_parameters_[0].norm1),
                           block.norm1.slice(0, n * c), block.rstd1.slice(0, n));
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    block_forward(stream, pass, parameters, layer);
}

// Enters with input and norm1 made; leaves input and norm1 of the next block (or the last norm)
// made.
void Llama::block_forward(Stream& stream, const Pass& pass, ConstBuffer parameters,
                          std::size_t layer) {
  const std::int64_t n = pass.rows();
  const std::int64_t c = config_.hidden;
  const std::int64_t i = config_.mlp_hidden;
  const float epsilon = config_.norm_epsilon;
  const BlockParameters& p = block_parameters_[layer];
  Block& b = blocks_[layer];
  const AttentionShape shape = attention(pass);
  const Buffer qkv = b.qkv.slice(0, n * shape.columns());
  linear(stream, pass, p.qkv, parameters, b.norm1, qkv);
  kernels_.rotate(stream, rotation(pass, false), angles_, qkv);
  kernels_.attention_forward(stream, shape, qkv, b.scores.slice(0, kernels_.attention_saved(shape)),
                             b.attended.slice(0, n * c));
  linear(stream, pass, p.out, parameters, b.attended, branch_);
  kernels_.add_rmsnorm_forward(stream, c, epsilon, b.input.slice(0, n * c), branch_.slice(0, n * c),
                               weight(parameters, p.norm2), b.middle.slice(0, n * c),
                               b.norm2.slice(0, n * c), b.rstd2.slice(0, n));
  linear(stream, pass, p.gate_up, parameters, b.norm2, b.gate_up);
  kernels_.swiglu_forward(stream, i, b.gate_up.slice(0, n * 2 * i), b.gated.slice(0, n * i));
  linear(stream, pass, p.down, parameters, b.gated, branch_);

  const bool is_last = layer + 1 == blocks_.size();
  Block* next = is_last ? nullptr : &blocks_[layer + 1];
  kernels_.add_rmsnorm_forward(
      stream, c, epsilon, b.middle.slice(0, n * c), branch_.slice(0, n * c),
      weight(parameters, is_last ? last_weight_ : block_parameters_[layer + 1].norm1),
      (is_last ? last_input_ : next->input).slice(0, n * c),
      (is_last ? last_norm_ : next->norm1).slice(0, n * c),
      (is_last ? last_rstd_ : next->rstd1).slice(0, n));
}

void Llama::linear_backward(Stream& stream, const Pass& pass, const Matrix& m, ConstBuffer x,
                            ConstBuffer dy, ConstBuffer parameters, Buffer gradient, Buffer dx) {
  const std::int64_t n = pass.rows();
  kernels_.gemm(stream, {.m = m.out, .n = m.in, .k = n, .transpose_a = true}, dy, x, {},
                gradient.slice(m.offset, m.in * m.out));
  kernels_.gemm(stream, {.m = n, .n = m.in, .k = m.out}, dy,
                parameters.slice(m.offset, m.in * m.out), {}, dx);
}

void Llama::backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient) {
  device_.memset(stream, grad_stream_, 0);
  kernels_.rmsnorm_backward(stream, config_.hidden, last_input_, weight(parameters, last_weight_),
                            last_rstd_, grad_norm_, grad_stream_, part(gradient, last_weight_));
  for (std::size_t layer = blocks_.size(); layer-- > 0;)
    block_backward(stream, pass, parameters, gradient, layer);
  kernels_.embed_backward(stream, pass.length, config_.hidden, config_.vocabulary, inputs_,
                          grad_stream_, embed_workspace_, part(gradient, token_table_), {});
}

// grad_stream_ holds the gradient of the block's output and leaves with that of its input.
void Llama::block_backward(Stream& stream, const Pass& pass, ConstBuffer parameters,
                           Buffer gradient, std::size_t layer) {
  const std::int64_t c = config_.hidden;
  const BlockParameters& p = block_parameters_[layer];
  Block& b = blocks_[layer];
  linear_backward(stream, pass, p.down, b.gated, grad_stream_, parameters, gradient, grad_gated_);
  kernels_.swiglu_backward(stream, config_.mlp_hidden, b.gate_up, grad_gated_, grad_gate_up_);
  linear_backward(stream, pass, p.gate_up, b.norm2, grad_gate_up_, parameters, gradient,
                  grad_norm_);
  kernels_.rmsnorm_backward(stream, c, b.middle, weight(parameters, p.norm2), b.rstd2, grad_norm_,
                            grad_stream_, part(gradient, p.norm2));

  linear_backward(stream, pass, p.out, b.attended, grad_stream_, parameters, gradient, grad_norm_);
  kernels_.attention_backward(stream, attention(pass), b.qkv, b.scores, b.attended, grad_norm_,
                              attention_workspace_, grad_qkv_);
  kernels_.rotate(stream, rotation(pass, true), angles_, grad_qkv_);
  linear_backward(stream, pass, p.qkv, b.norm1, grad_qkv_, parameters, gradient, grad_norm_);
  kernels_.rmsnorm_backward(stream, c, b.input, weight(parameters, p.norm1), b.rstd1, grad_norm_,
                            grad_stream_, part(gradient, p.norm1));
}

}  // namespace rubato::worker
