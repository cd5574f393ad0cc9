// The layers of GPT-2, forward and backward, as calls of kernels.
#include "worker/model/gpt2.h"

namespace rubato::worker {

void Gpt2::forward(Stream& stream, const Pass& pass, ConstBuffer parameters) {
  const std::int64_t n = pass.rows();
  const std::int64_t c = config_.hidden;
  kernels_.embed_forward(stream, pass.length, c, inputs_.slice(0, n),
                         weight(parameters, token_table_), weight(parameters, position_table_),
                         blocks_[0].input.slice(0, n * c));
  const BlockParameters& first = block_parameters_[0];
  Block& block = blocks_[0];
  kernels_.layernorm_forward(stream, c, config_.norm_epsilon, block.input.slice(0, n * c),
                             weight(parameters, first.norm1_weight),
                             weight(parameters, first.norm1_bias), block.norm1.slice(0, n * c),
                             block.mean1.slice(0, n), block.rstd1.slice(0, n));
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer)
    block_forward(stream, pass, parameters, layer);
}

// Enters with input and norm1 made; leaves input and norm1 of the next block (or the last
// layernorm) made.
void Gpt2::block_forward(Stream& stream, const Pass& pass, ConstBuffer parameters,
                         std::size_t layer) {
  const std::int64_t n = pass.rows();
  const std::int64_t c = config_.hidden;
  const float epsilon = config_.norm_epsilon;
  const BlockParameters& p = block_parameters_[layer];
  Block& b = blocks_[layer];
  const auto linear = [&](std::int64_t in, std::int64_t out, Buffer x, std::size_t w,
                          std::size_t bias, Buffer y) {
    kernels_.gemm(stream, {.m = n, .n = out, .k = in}, x.slice(0, n * in), weight(parameters, w),
                  weight(parameters, bias), y.slice(0, n * out));
  };
  linear(c, 3 * c, b.norm1, p.qkv_weight, p.qkv_bias, b.qkv);
  const AttentionShape shape = attention(pass);
  kernels_.attention_forward(stream, shape, b.qkv.slice(0, n * 3 * c),
                             b.scores.slice(0, kernels_.attention_saved(shape)),
                             b.attended.slice(0, n * c));
  linear(c, c, b.attended, p.out_weight, p.out_bias, branch_);
  kernels_.add_layernorm_forward(stream, c, epsilon, b.input.slice(0, n * c),
                                 branch_.slice(0, n * c), weight(parameters, p.norm2_weight),
                                 weight(parameters, p.norm2_bias), b.middle.slice(0, n * c),
                                 b.norm2.slice(0, n * c), b.mean2.slice(0, n), b.rstd2.slice(0, n));
  linear(c, 4 * c, b.norm2, p.up_weight, p.up_bias, b.hidden);
  kernels_.gelu_forward(stream, b.hidden.slice(0, n * 4 * c), b.gelu.slice(0, n * 4 * c));
  linear(4 * c, c, b.gelu, p.down_weight, p.down_bias, branch_);

  const bool is_last = layer + 1 == blocks_.size();
  const std::size_t next_weight =
      is_last ? last_weight_ : block_parameters_[layer + 1].norm1_weight;
  const std::size_t next_bias = is_last ? last_bias_ : block_parameters_[layer + 1].norm1_bias;
  Block* next = is_last ? nullptr : &blocks_[layer + 1];
  kernels_.add_layernorm_forward(stream, c, epsilon, b.middle.slice(0, n * c),
                                 branch_.slice(0, n * c), weight(parameters, next_weight),
                                 weight(parameters, next_bias),
                                 (is_last ? last_input_ : next->input).slice(0, n * c),
                                 (is_last ? last_norm_ : next->norm1).slice(0, n * c),
                                 (is_last ? last_mean_ : next->mean1).slice(0, n),
                                 (is_last ? last_rstd_ : next->rstd1).slice(0, n));
}

void Gpt2::backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient) {
  device_.memset(stream, grad_stream_, 0);
  kernels_.layernorm_backward(stream, config_.hidden, last_input_, weight(parameters, last_weight_),
                              last_mean_, last_rstd_, grad_norm_, grad_stream_,
                              part(gradient, last_weight_), part(gradient, last_bias_));
  for (std::size_t layer = blocks_.size(); layer-- > 0;)
    block_backward(stream, pass, parameters, gradient, layer);
  kernels_.embed_backward(stream, pass.length, config_.hidden, config_.vocabulary, inputs_,
                          grad_stream_, embed_workspace_, part(gradient, token_table_),
                          part(gradient, position_table_));
}

void Gpt2::linear_backward(Stream& stream, const Pass& pass, ConstBuffer x, ConstBuffer dy,
                           std::size_t weight_index, std::size_t bias_index, ConstBuffer parameters,
                           Buffer gradient, Buffer dx) {
  const std::vector<std::int64_t>& shape = table_.entries()[weight_index].shape;
  const std::int64_t n = pass.rows();
  const std::int64_t in = shape[0];
  const std::int64_t out = shape[1];
  kernels_.gemm(stream, {.m = in, .n = out, .k = n, .transpose_a = true}, x, dy, {},
                part(gradient, weight_index));
  kernels_.column_sum(stream, out, dy, part(gradient, bias_index));
  kernels_.gemm(stream, {.m = n, .n = in, .k = out, .transpose_b = true}, dy,
                weight(parameters, weight_index), {}, dx);
}

// grad_stream_ holds the gradient of the block's output and leaves with that of its input.
void Gpt2::block_backward(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient,
                          std::size_t layer) {
  const std::int64_t c = config_.hidden;
  const BlockParameters& p = block_parameters_[layer];
  Block& b = blocks_[layer];
  linear_backward(stream, pass, b.gelu, grad_stream_, p.down_weight, p.down_bias, parameters,
                  gradient, grad_hidden_);
  kernels_.gelu_backward(stream, b.hidden, grad_hidden_);
  linear_backward(stream, pass, b.norm2, grad_hidden_, p.up_weight, p.up_bias, parameters, gradient,
                  grad_norm_);
  kernels_.layernorm_backward(stream, c, b.middle, weight(parameters, p.norm2_weight), b.mean2,
                              b.rstd2, grad_norm_, grad_stream_, part(gradient, p.norm2_weight),
                              part(gradient, p.norm2_bias));

  linear_backward(stream, pass, b.attended, grad_stream_, p.out_weight, p.out_bias, parameters,
                  gradient, grad_norm_);
  kernels_.attention_backward(stream, attention(pass), b.qkv, b.scores, b.attended, grad_norm_,
                              attention_workspace_, grad_qkv_);
  linear_backward(stream, pass, b.norm1, grad_qkv_, p.qkv_weight, p.qkv_bias, parameters, gradient,
                  grad_norm_);
  kernels_.layernorm_backward(stream, c, b.input, weight(parameters, p.norm1_weight), b.mean1,
                              b.rstd1, grad_norm_, grad_stream_, part(gradient, p.norm1_weight),
                              part(gradient, p.norm1_bias));
}

}  // namespace rubato::worker
