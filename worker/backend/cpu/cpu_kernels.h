// Kernels of the CPU: checks the shapes, sets the floating-point mode and calls oneDNN or the
// kernels compiled for the pinned instruction set. Everything runs in the calling thread, at once.
#pragma once

#include "worker/backend/cpu/isa.h"
#include "worker/backend/cpu/ops.h"
#include "worker/backend/kernels.h"

#include <cstdint>
#include <limits>

namespace rubato::worker::cpu {

class CpuKernels : public Kernels {
 public:
  explicit CpuKernels(Isa isa);

  void gemm(Stream& stream, const GemmShape& shape, ConstBuffer a, ConstBuffer b, ConstBuffer bias,
            Buffer c) override;
  void embed_forward(Stream& stream, std::int64_t length, std::int64_t hidden, ConstBuffer tokens,
                     ConstBuffer token_table, ConstBuffer position_table, Buffer out) override;
  void embed_backward(Stream& stream, std::int64_t length, std::int64_t hidden,
                      std::int64_t vocabulary, ConstBuffer tokens, ConstBuffer out_gradient,
                      Buffer workspace, Buffer token_gradient, Buffer position_gradient) override;
  std::int64_t embed_workspace(std::int64_t tokens, std::int64_t vocabulary) const override;
  void layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                         ConstBuffer weight, ConstBuffer bias, Buffer y, Buffer mean,
                         Buffer rstd) override;
  void add_layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer a,
                             ConstBuffer b, ConstBuffer weight, ConstBuffer bias, Buffer sum,
                             Buffer y, Buffer mean, Buffer rstd) override;
  void layernorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                          ConstBuffer mean, ConstBuffer rstd, ConstBuffer y_gradient,
                          Buffer x_gradient, Buffer weight_gradient, Buffer bias_gradient) override;
  void rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                       ConstBuffer weight, Buffer y, Buffer rstd) override;
  void add_rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer a,
                           ConstBuffer b, ConstBuffer weight, Buffer sum, Buffer y,
                           Buffer rstd) override;
  void rmsnorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                        ConstBuffer rstd, ConstBuffer y_gradient, Buffer x_gradient,
                        Buffer weight_gradient) override;
  void swiglu_forward(Stream& stream, std::int64_t width, ConstBuffer gate_up, Buffer y) override;
  void swiglu_backward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                       ConstBuffer y_gradient, Buffer gate_up_gradient) override;
  void rotate(Stream& stream, const RotaryShape& shape, ConstBuffer angles, Buffer x) override;
  void gelu_forward(Stream& stream, ConstBuffer x, Buffer y) override;
  void gelu_backward(Stream& stream, ConstBuffer x, Buffer gradient) override;
  void add(Stream& stream, ConstBuffer a, ConstBuffer b, Buffer out) override;
  void column_sum(Stream& stream, std::int64_t columns, ConstBuffer x, Buffer out) override;
  void attention_forward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv, Buffer saved,
                         Buffer out) override;
  void attention_backward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                          ConstBuffer saved, ConstBuffer out, ConstBuffer out_gradient,
                          Buffer workspace, Buffer qkv_gradient) override;
  std::int64_t attention_head_size_max() const override {
    return std::numeric_limits<std::int64_t>::max();
  }
  std::int64_t attention_saved(const AttentionShape& shape) const override;
  std::int64_t attention_untouched(const AttentionShape& shape) const override;
  std::int64_t attention_workspace(const AttentionShape& shape) const override;
  void softmax_cross_entropy(Stream& stream, std::int64_t columns, std::int64_t vocabulary,
                             float scale, bool write_gradient, ConstBuffer targets, Buffer logits,
                             Buffer losses) override;
  void adamw(Stream& stream, const AdamWStep& step, ConstBuffer gradient, Buffer parameters,
             Buffer exp_avg, Buffer exp_avg_sq) override;
  void quantise_add(Stream& stream, int fraction_bits, int guard_shift, ConstBuffer exponents,
                    ConstBuffer gradient, Buffer sums, Buffer guards) override;
  void dither_add(Stream& stream, int fraction_bits, int guard_shift, const Dither& dither,
                  ConstBuffer exponents, ConstBuffer gradient, Buffer sums, Buffer guards) override;
  void dequantise(Stream& stream, int fraction_bits, float factor, ConstBuffer exponents,
                  ConstBuffer sums, Buffer gradient) override;
  void block_exponents(Stream& stream, ConstBuffer x, Buffer out) override;
  void squared_norm_chunks(Stream& stream, ConstBuffer x, Buffer out) override;
  void add_i32(Stream& stream, ConstBuffer from, Buffer to) override;
  void weighted_sums(Stream& stream, ConstBuffer x, Buffer out) override;

 private:
  // Factor 0 or 1 of a product, rounded to bf16; until the next product in this thread.
  std::uint16_t* rounded(std::size_t factor, ConstBuffer x) const;

  const Ops& ops_;
  const Precision precision_;
};

}  // namespace rubato::worker::cpu
