// The kernels of a DeferredDevice: every operation, later. Private to worker/testing.
#pragma once

#include "worker/backend/kernels.h"
#include "worker/testing/deferred_stream.h"

#include <cstdint>
#include <functional>
#include <utility>

namespace rubato::worker::deferred {

// Buffers are values, and what is handed in by reference is copied.
class DeferredKernels : public Kernels {
 public:
  DeferredKernels(Kernels& inner, Stream& inner_stream)
      : inner_(inner), inner_stream_(inner_stream) {}

  void gemm(Stream& stream, const GemmShape& shape, ConstBuffer a, ConstBuffer b, ConstBuffer bias,
            Buffer c) override {
    defer(stream, [=, this] { inner_.gemm(inner_stream_, shape, a, b, bias, c); });
  }

  void embed_forward(Stream& stream, std::int64_t length, std::int64_t hidden, ConstBuffer tokens,
                     ConstBuffer token_table, ConstBuffer position_table, Buffer out) override {
    defer(stream, [=, this] {
      inner_.embed_forward(inner_stream_, length, hidden, tokens, token_table, position_table, out);
    });
  }

  void embed_backward(Stream& stream, std::int64_t length, std::int64_t hidden,
                      std::int64_t vocabulary, ConstBuffer tokens, ConstBuffer out_gradient,
                      Buffer workspace, Buffer token_gradient, Buffer position_gradient) override {
    defer(stream, [=, this] {
      inner_.embed_backward(inner_stream_, length, hidden, vocabulary, tokens, out_gradient,
                            workspace, token_gradient, position_gradient);
    });
  }

  std::int64_t embed_workspace(std::int64_t tokens, std::int64_t vocabulary) const override {
    return inner_.embed_workspace(tokens, vocabulary);
  }

  void layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                         ConstBuffer weight, ConstBuffer bias, Buffer y, Buffer mean,
                         Buffer rstd) override {
    defer(stream, [=, this] {
      inner_.layernorm_forward(inner_stream_, hidden, epsilon, x, weight, bias, y, mean, rstd);
    });
  }

  void add_layernorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer a,
                             ConstBuffer b, ConstBuffer weight, ConstBuffer bias, Buffer sum,
                             Buffer y, Buffer mean, Buffer rstd) override {
    defer(stream, [=, this] {
      inner_.add_layernorm_forward(inner_stream_, hidden, epsilon, a, b, weight, bias, sum, y, mean,
                                   rstd);
    });
  }

  void layernorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                          ConstBuffer mean, ConstBuffer rstd, ConstBuffer y_gradient,
                          Buffer x_gradient, Buffer weight_gradient,
                          Buffer bias_gradient) override {
    defer(stream, [=, this] {
      inner_.layernorm_backward(inner_stream_, hidden, x, weight, mean, rstd, y_gradient,
                                x_gradient, weight_gradient, bias_gradient);
    });
  }

  void rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer x,
                       ConstBuffer weight, Buffer y, Buffer rstd) override {
    defer(stream, [=, this] {
      inner_.rmsnorm_forward(inner_stream_, hidden, epsilon, x, weight, y, rstd);
    });
  }

  void add_rmsnorm_forward(Stream& stream, std::int64_t hidden, float epsilon, ConstBuffer a,
                           ConstBuffer b, ConstBuffer weight, Buffer sum, Buffer y,
                           Buffer rstd) override {
    defer(stream, [=, this] {
      inner_.add_rmsnorm_forward(inner_stream_, hidden, epsilon, a, b, weight, sum, y, rstd);
    });
  }

  void rmsnorm_backward(Stream& stream, std::int64_t hidden, ConstBuffer x, ConstBuffer weight,
                        ConstBuffer rstd, ConstBuffer y_gradient, Buffer x_gradient,
                        Buffer weight_gradient) override {
    defer(stream, [=, this] {
      inner_.rmsnorm_backward(inner_stream_, hidden, x, weight, rstd, y_gradient, x_gradient,
                              weight_gradient);
    });
  }

  void swiglu_forward(Stream& stream, std::int64_t width, ConstBuffer gate_up, Buffer y) override {
    defer(stream, [=, this] { inner_.swiglu_forward(inner_stream_, width, gate_up, y); });
  }

  void swiglu_backward(Stream& stream, std::int64_t width, ConstBuffer gate_up,
                       ConstBuffer y_gradient, Buffer gate_up_gradient) override {
    defer(stream, [=, this] {
      inner_.swiglu_backward(inner_stream_, width, gate_up, y_gradient, gate_up_gradient);
    });
  }

  void rotate(Stream& stream, const RotaryShape& shape, ConstBuffer angles, Buffer x) override {
    defer(stream, [=, this] { inner_.rotate(inner_stream_, shape, angles, x); });
  }

  void gelu_forward(Stream& stream, ConstBuffer x, Buffer y) override {
    defer(stream, [=, this] { inner_.gelu_forward(inner_stream_, x, y); });
  }

  void gelu_backward(Stream& stream, ConstBuffer x, Buffer gradient) override {
    defer(stream, [=, this] { inner_.gelu_backward(inner_stream_, x, gradient); });
  }

  void add(Stream& stream, ConstBuffer a, ConstBuffer b, Buffer out) override {
    defer(stream, [=, this] { inner_.add(inner_stream_, a, b, out); });
  }

  void column_sum(Stream& stream, std::int64_t columns, ConstBuffer x, Buffer out) override {
    defer(stream, [=, this] { inner_.column_sum(inner_stream_, columns, x, out); });
  }

  void attention_forward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv, Buffer saved,
                         Buffer out) override {
    defer(stream, [=, this] { inner_.attention_forward(inner_stream_, shape, qkv, saved, out); });
  }

  void attention_backward(Stream& stream, const AttentionShape& shape, ConstBuffer qkv,
                          ConstBuffer saved, ConstBuffer out, ConstBuffer out_gradient,
                          Buffer workspace, Buffer qkv_gradient) override {
    defer(stream, [=, this] {
      inner_.attention_backward(inner_stream_, shape, qkv, saved, out, out_gradient, workspace,
                                qkv_gradient);
    });
  }

  std::int64_t logits_at_a_time() const override { return inner_.logits_at_a_time(); }
  std::int64_t attention_head_size_max() const override { return inner_.attention_head_size_max(); }

  std::int64_t attention_saved(const AttentionShape& shape) const override {
    return inner_.attention_saved(shape);
  }

  std::int64_t attention_untouched(const AttentionShape& shape) const override {
    return inner_.attention_untouched(shape);
  }

  std::int64_t attention_workspace(const AttentionShape& shape) const override {
    return inner_.attention_workspace(shape);
  }

  void softmax_cross_entropy(Stream& stream, std::int64_t columns, std::int64_t vocabulary,
                             float scale, bool write_gradient, ConstBuffer targets, Buffer logits,
                             Buffer losses) override {
    defer(stream, [=, this] {
      inner_.softmax_cross_entropy(inner_stream_, columns, vocabulary, scale, write_gradient,
                                   targets, logits, losses);
    });
  }

  void adamw(Stream& stream, const AdamWStep& step, ConstBuffer gradient, Buffer parameters,
             Buffer exp_avg, Buffer exp_avg_sq) override {
    defer(stream, [=, this] {
      inner_.adamw(inner_stream_, step, gradient, parameters, exp_avg, exp_avg_sq);
    });
  }

  void quantise_add(Stream& stream, int fraction_bits, int guard_shift, ConstBuffer exponents,
                    ConstBuffer gradient, Buffer sums, Buffer guards) override {
    defer(stream, [=, this] {
      inner_.quantise_add(inner_stream_, fraction_bits, guard_shift, exponents, gradient, sums,
                          guards);
    });
  }

  void dither_add(Stream& stream, int fraction_bits, int guard_shift, const Dither& dither,
                  ConstBuffer exponents, ConstBuffer gradient, Buffer sums,
                  Buffer guards) override {
    defer(stream, [=, this] {
      inner_.dither_add(inner_stream_, fraction_bits, guard_shift, dither, exponents, gradient,
                        sums, guards);
    });
  }

  void dequantise(Stream& stream, int fraction_bits, float factor, ConstBuffer exponents,
                  ConstBuffer sums, Buffer gradient) override {
    defer(stream, [=, this] {
      inner_.dequantise(inner_stream_, fraction_bits, factor, exponents, sums, gradient);
    });
  }

  void block_exponents(Stream& stream, ConstBuffer x, Buffer out) override {
    defer(stream, [=, this] { inner_.block_exponents(inner_stream_, x, out); });
  }

  void squared_norm_chunks(Stream& stream, ConstBuffer x, Buffer out) override {
    defer(stream, [=, this] { inner_.squared_norm_chunks(inner_stream_, x, out); });
  }

  void add_i32(Stream& stream, ConstBuffer from, Buffer to) override {
    defer(stream, [=, this] { inner_.add_i32(inner_stream_, from, to); });
  }
  void weighted_sums(Stream& stream, ConstBuffer x, Buffer out) override {
    defer(stream, [=, this] { inner_.weighted_sums(inner_stream_, x, out); });
  }

 private:
  static void defer(Stream& stream, std::function<void()> work) {
    static_cast<DeferredStream&>(stream).enqueue(std::move(work));
  }
  Kernels& inner_;
  Stream& inner_stream_;
};

}  // namespace rubato::worker::deferred
