#include "worker/backend/cpu/ops_internal.h"

#define RUBATO_CONCAT_(a, b) a##b
#define RUBATO_CONCAT(a, b) RUBATO_CONCAT_(a, b)

namespace rubato::worker::cpu {

const Ops& RUBATO_CONCAT(ops_, RUBATO_KERNEL_ISA)() {
  using namespace RUBATO_KERNEL_ISA;
  static constexpr Ops kOps{
      .layernorm_forward = layernorm_forward,
      .layernorm_backward = layernorm_backward,
      .rmsnorm_forward = rmsnorm_forward,
      .rmsnorm_backward = rmsnorm_backward,
      .column_sum = column_sum,
      .broadcast_row = broadcast_row,
      .softmax_cross_entropy = softmax_cross_entropy,
      .causal_softmax = causal_softmax,
      .causal_softmax_backward = causal_softmax_backward,
      .gelu_forward = gelu_forward,
      .gelu_backward = gelu_backward,
      .swiglu_forward = swiglu_forward,
      .swiglu_backward = swiglu_backward,
      .rotate = rotate,
      .to_bf16 = to_bf16,
      .add = add,
      .adamw = adamw,
      .embed_forward = embed_forward,
      .embed_backward = embed_backward,
      .quantise_add = quantise_add,
      .dither_add = dither_add,
      .dequantise = dequantise,
      .block_exponents = block_exponents,
      .squared_norm_chunks = squared_norm_chunks,
      .add_i32 = add_i32,
      .weighted_sums = weighted_sums,
  };
  return kOps;
}

}  // namespace rubato::worker::cpu
