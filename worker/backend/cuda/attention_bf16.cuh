// Causal attention on tensor cores: the sums of attention_tiles.cuh, where what is multiplied is
// rounded to bf16 first (queries, keys, values, the output's gradient, probabilities and the
// gradients of scores), and all that is added, kept and stored is f32.
//
// A block of 128 threads has a tile of 64 rows of one (sequence, head): each of its four warps has
// 16 of them, and goes over tiles of kOthers<D> others, which lie in shared memory in bf16. Scores
// stay in registers: the lane that adds up two of them is the one that multiplies them next
// (instructions.cuh; Dao 2023, "FlashAttention-2"). Rows in shared memory are D + 8 elements
// long: eight rows that are read together meet no bank twice.
#pragma once

#include "worker/backend/cuda/attention_heads.cuh"
#include "worker/backend/cuda/instructions.cuh"
#include "worker/backend/cuda/launch.cuh"

namespace rubato::worker::cuda::bf16 {

constexpr int kThreads = 128;
constexpr int kWarpRows = 16;
constexpr float kLog2E = 1.4426950408889634f;

// Rows of a tile that a block goes over: as many as leave no register spilled.
template <int D>
constexpr int kOthers = D > 64 ? 32 : 64;
template <int D>
constexpr int kStride = D + 8;
template <int D>
constexpr int kTileBytes = kTile * kStride<D> * 2;
template <int D>
constexpr int kOthersBytes = kOthers<D> * kStride<D> * 2;

// A lane's four elements of a tile of 16 x 8: rows g and g + 8, columns 2t and 2t + 1.
using Piece = float[4];

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The first of this warp's rows in its block's tile.
__device__ __forceinline__ int warp_row() {
  return static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
}

// Rows first .. first + Rows - 1 of a matrix into a tile, rounded; what lies outside is zero.
template <int D, int Rows>
__device__ __forceinline__ void fill(std::uint16_t* tile, const float* from,
                                     std::int64_t row_stride, std::int64_t first,
                                     const AttentionOp& op) {
#pragma unroll 2
  for (int at = threadIdx.x; at < Rows * D / 4; at += kThreads) {
    const int row = at / (D / 4), column = at % (D / 4) * 4;
    Pack<float, 4> four = {};
    if (first + row < op.length && column < op.head_size) {
      const float* place = from + (first + row) * row_stride + column;
      if (op.is_wide) {
        four = load<4>(place);
      } else {
        for (int i = 0; i < 4; ++i)
          if (column + i < op.head_size) four.v[i] = place[i];
      }
    }
    const Pack<unsigned, 2> words = {
        {pack_bf16(four.v[0], four.v[1]), pack_bf16(four.v[2], four.v[3])}};
    store<2>(reinterpret_cast<unsigned*>(tile + row * kStride<D> + column), words);
  }
}

// The next rows of two matrices, once all have read those that were there before.
template <int D>
__device__ __forceinline__ void fill_others(std::uint16_t* one, const float* from_one,
                                            std::int64_t stride_one, std::uint16_t* two,
                                            const float* from_two, std::int64_t stride_two,
                                            std::int64_t first, const AttentionOp& op) {
  __syncthreads();
  fill<D, kOthers<D>>(one, from_one, stride_one, first, op);
  fill<D, kOthers<D>>(two, from_two, stride_two, first, op);
  __syncthreads();
}

// scores += (16 rows of a, from `row` on) (rows of b) transposed, over D elements.
template <int D, int N>
__device__ __forceinline__ void add_scores(const std::uint16_t* a, int row, const std::uint16_t* b,
                                           Piece (&scores)[N]) {
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    unsigned left[4];
    load_matrices(a + (row + lane() % 16) * kStride<D> + k + lane() / 16 * 8, left);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      load_matrices(
          b + (8 * n + lane() % 8 + lane() / 16 * 8) * kStride<D> + k + lane() / 8 % 2 * 8, right);
      multiply_add(scores[n], left, right[0], right[1]);
      multiply_add(scores[n + 1], left, right[2], right[3]);
    }
  }
}

// out += weights (16 x 8 N) others (8 N rows of D elements).
template <int D, int N>
__device__ __forceinline__ void add_product(const Piece (&weights)[N], const std::uint16_t* others,
                                            Piece (&out)[D / 8]) {
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    const unsigned left[4] = {pack_bf16(weights[k][0], weights[k][1]),
                              pack_bf16(weights[k][2], weights[k][3]),
                              pack_bf16(weights[k + 1][0], weights[k + 1][1]),
                              pack_bf16(weights[k + 1][2], weights[k + 1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      unsigned right[4];
      load_transposed(others + (8 * k + lane() % 16) * kStride<D> + 8 * n + lane() / 16 * 8, right);
      multiply_add(out[n], left, right[0], right[1]);
      multiply_add(out[n + 1], left, right[2], right[3]);
    }
  }
}

template <int N>
__device__ __forceinline__ void clear(Piece (&pieces)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n)
    for (float& x : pieces[n]) x = 0.0f;
}

// Over the four lanes that share a row.
template <class Join>
__device__ __forceinline__ float fold_row(float x, Join join) {
  x = join(x, __shfl_xor_sync(kAllLanes, x, 1));
  return join(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// This warp's rows of an output, each times its factor of two (rows g and g + 8).
template <int D>
__device__ __forceinline__ void write(float* to, std::int64_t row_stride, std::int64_t first,
                                      const Piece (&pieces)[D / 8], const float (&factors)[2],
                                      const AttentionOp& op) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + warp_row() + lane() / 4 + 8 * half;
    if (row >= op.length) continue;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int column = 8 * n + lane() % 4 * 2;
      float* place = to + row * row_stride + column;
      const Pack<float, 2> two = {
          {pieces[n][2 * half] * factors[half], pieces[n][2 * half + 1] * factors[half]}};
      if (op.is_wide && column < op.head_size) store<2>(place, two);
      if (op.is_wide) continue;
      for (int i = 0; i < 2; ++i)
        if (column + i < op.head_size) place[i] = two.v[i];
    }
  }
}

// Shared memory as tiles one after the other.
__device__ __forceinline__ std::uint16_t* tile_at(int bytes) {
  return reinterpret_cast<std::uint16_t*>(dynamic_shared) + bytes / 2;
}

}  // namespace rubato::worker::cuda::bf16
