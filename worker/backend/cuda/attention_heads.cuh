// What attention's kernels share, in f32 and in bf16: where heads lie, and how grids are made.
#pragma once

#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/ops.h"

#include <cmath>

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

constexpr int kTile = 64;  // rows of a block

// Where one query head of the block's sequence, and the key head that it uses, lie in the matrices
// of the model.
struct Head {
  std::int64_t hidden;             // columns of all heads
  std::int64_t stride;             // columns of qkv
  std::int64_t query, key, value;  // of row 0 in qkv
  std::int64_t out;                // of row 0
  std::int64_t scalar;             // of row 0 in lse and dots
};
__device__ __forceinline__ Head head_of(const AttentionOp& op, std::int64_t head) {
  const std::int64_t hidden = op.heads * op.head_size;
  const std::int64_t kv_hidden = op.kv_heads * op.head_size;
  const std::int64_t stride = hidden + 2 * kv_hidden;
  const std::int64_t rows = blockIdx.z * op.length;  // before this sequence
  const std::int64_t key = hidden + head / (op.heads / op.kv_heads) * op.head_size;
  return {hidden,
          stride,
          rows * stride + head * op.head_size,
          rows * stride + key,
          rows * stride + key + kv_hidden,
          rows * hidden + head * op.head_size,
          (blockIdx.z * op.heads + head) * op.length};
}

// More than 48 KiB of shared memory must be asked for, once a kernel and device.
template <class Kernel>
void allow_shared(Kernel kernel, int bytes) {
  (void)cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

inline dim3 grid_of(const AttentionOp& op, std::int64_t heads) {
  return {blocks_for(op.length, kTile), static_cast<unsigned>(heads),
          static_cast<unsigned>(op.batch)};
}

inline float scale_of(const AttentionOp& op) {
  return 1.0f / sqrtf(static_cast<float>(op.head_size));
}

// Calls f with the smallest size that is compiled and not below that of the head.
template <class F>
void with_size(std::int64_t head_size, F f) {
  if (head_size <= 32) return f.template operator()<32>();
  if (head_size <= 64) return f.template operator()<64>();
  f.template operator()<kHeadSizeMax>();
}

}  // namespace rubato::worker::cuda
