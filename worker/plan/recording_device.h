// A device that computes nothing and takes down what it is asked to: each kernel with the bytes of
// its tensors and its floating-point operations. What a step costs on a GPU follows from it without
// a GPU, and from the model's own code: there is no second list of its layers.
//
// Its memory is that of an AddressDevice. Sizes that a backend chooses (workspaces, what attention
// keeps) are those of the CUDA backend.
// Thread: one at a time.
#pragma once

#include "worker/backend/kernels.h"
#include "worker/plan/address_device.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::worker {

enum class KernelKind : std::uint8_t { kGemm, kAttentionForward, kAttentionBackward, kMemory };

// Calls of one kernel at one shape.
struct KernelCalls {
  std::string kernel;  // as in Kernels
  std::string shape;   // for people
  KernelKind kind = KernelKind::kMemory;
  // Of one call: each tensor that is read, and each that is written, once; twice where the CUDA
  // backend has two kernels that do so.
  double bytes = 0;
  double flops = 0;  // of one call; 0 for kernels that are bound by memory
  std::int64_t count = 0;

  bool operator==(const KernelCalls&) const = default;
};

class RecordingKernels : public Kernels {
 public:
  explicit RecordingKernels(Precision precision) : precision_(precision) {}
  // In the order of their first call.
  const std::vector<KernelCalls>& calls() const { return calls_; }
  void clear() { calls_.clear(); }
  void note(KernelCalls call);

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
  std::int64_t logits_at_a_time() const override;
  std::int64_t attention_head_size_max() const override;
  std::int64_t attention_saved(const AttentionShape& shape) const override;
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
  Precision precision_;
  std::vector<KernelCalls> calls_;
};

class RecordingDevice : public AddressDevice {
 public:
  explicit RecordingDevice(Precision precision) : kernels_(precision) {}
  std::string name() const override { return "recording"; }
  RecordingKernels& kernels() override { return kernels_; }
  void copy(Stream& stream, Buffer to, ConstBuffer from) override;
  void memset(Stream& stream, Buffer to, std::uint8_t byte) override;

 private:
  RecordingKernels kernels_;
};

}  // namespace rubato::worker
