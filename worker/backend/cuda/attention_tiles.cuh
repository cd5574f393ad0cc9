// Causal attention without a matrix of probabilities (Dao et al. 2022, "FlashAttention"), in f32.
// The forward pass walks over tiles of keys with a running maximum and sum, and keeps for each row
// only lse = log sum_j exp(s_j). The backward pass makes the probabilities again, p = exp(s - lse):
//   dots = dout . out;  dv = p^T dout;  ds = p (dout v^T - dots) scale;  dq = ds k;  dk = ds^T q
// one kernel for dk and dv, one for dq, so that each sum belongs to one block and has one order.
//
// A block of 256 threads has a tile of 64 rows of one (sequence, head), and goes over tiles of 64
// others. Thread (tx, ty) of 16 x 16 has rows ty + 16 i and columns tx + 16 j of a tile of scores,
// and rows ty + 16 i of the output. Tiles lie in shared memory with rows of D + 4 floats: reads of
// four floats by neighbouring rows meet no bank twice. D is the size of a head rounded up; the rest
// is zero. Fused multiply-add is written out: it is part of this arithmetic.
#pragma once

#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/attention_heads.cuh"
#include "worker/backend/cuda/launch.cuh"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kRows = kTile / kSide;  // of a thread
constexpr int kScoreStride = kTile + 4;
constexpr int kScoreFloats = kTile * kScoreStride;

template <int D>
constexpr int kStride = D + 4;  // of a tile of rows of D elements
template <int D>
constexpr int kTileFloats = kTile * kStride<D>;

// Blocks on a multiprocessor that the registers are dealt for; shared memory allows no more.
template <int D>
constexpr int kBlocksWanted = D > 64 ? 1 : 2;

// Rows first .. first + 63 of a matrix into a tile, N elements at a time; what lies outside is
// zero.
template <int D, int N>
__device__ __forceinline__ void fill_by(float* tile, const float* from, std::int64_t row_stride,
                                        std::int64_t first, const AttentionOp& op) {
  constexpr int kPieces = D / N;  // of a row
#pragma unroll 2
  for (int at = threadIdx.x; at < kTile * kPieces; at += kThreads) {
    const int row = at / kPieces, column = at % kPieces * N;
    Pack<float, N> piece = {};
    if (first + row < op.length && column < op.head_size)
      piece = load<N>(from + (first + row) * row_stride + column);
    store<N>(tile + row * kStride<D> + column, piece);
  }
}
template <int D>
__device__ __forceinline__ void fill_tile(float* tile, const float* from, std::int64_t row_stride,
                                          std::int64_t first, const AttentionOp& op) {
  if (op.is_wide)
    fill_by<D, 4>(tile, from, row_stride, first, op);
  else
    fill_by<D, 1>(tile, from, row_stride, first, op);
}

// scores[i][j] = row (ty + 16 i) of a . row (tx + 16 j) of b, over D elements; kUnroll times four
// of them a turn: as many as leave no register spilled.
template <int D, int kUnroll>
__device__ __forceinline__ void make_scores(const float* a, const float* b,
                                            float (&scores)[kRows][kRows]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRows; ++j) scores[i][j] = 0.0f;
#pragma unroll kUnroll
  for (int d = 0; d < D; d += 4) {
    Pack<float, 4> left[kRows], right[kRows];
    for (int i = 0; i < kRows; ++i) left[i] = load<4>(a + (ty + kSide * i) * kStride<D> + d);
    for (int j = 0; j < kRows; ++j) right[j] = load<4>(b + (tx + kSide * j) * kStride<D> + d);
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kRows; ++j)
          scores[i][j] = fmaf(left[i].v[k], right[j].v[k], scores[i][j]);
  }
}

// A thread's part of an output tile: rows ty + 16 i, D / 16 columns each.
template <int D>
struct Part {
  static constexpr int kColumns = D / kSide;
  static constexpr bool kWide = kColumns % 4 == 0;
  float v[kRows][kColumns];

  __device__ __forceinline__ static int column(int c) {
    const int tx = threadIdx.x % kSide;
    return kWide ? tx * 4 + c / 4 * (4 * kSide) + c % 4 : tx + kSide * c;
  }
  __device__ __forceinline__ void clear() {
    for (auto& row : v)
      for (float& x : row) x = 0.0f;
  }
  // += the tile of scores (64 x 64) times the tile of others (64 x D).
  __device__ __forceinline__ void add(const float* scores, const float* others) {
    const int ty = threadIdx.x / kSide;
#pragma unroll 4
    for (int k = 0; k < kTile; k += 4) {
      Pack<float, 4> left[kRows];
      for (int i = 0; i < kRows; ++i)
        left[i] = load<4>(scores + (ty + kSide * i) * kScoreStride + k);
      for (int n = 0; n < 4; ++n) {
        float right[kColumns];
        read_columns(others + (k + n) * kStride<D>, right);
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c) v[i][c] = fmaf(left[i].v[n], right[c], v[i][c]);
      }
    }
  }
  __device__ __forceinline__ void write(float* to, std::int64_t row_stride, std::int64_t first,
                                        const AttentionOp& op) const {
    const int ty = threadIdx.x / kSide;
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + ty + kSide * i;
      if (row >= op.length) continue;
      for (int c = 0; c < kColumns; ++c)
        if (column(c) < op.head_size) to[row * row_stride + column(c)] = v[i][c];
    }
  }

 private:
  __device__ __forceinline__ static void read_columns(const float* row, float (&out)[kColumns]) {
    if constexpr (kWide) {
      for (int c = 0; c < kColumns; c += 4) {
        const Pack<float, 4> four = load<4>(row + column(c));
        for (int k = 0; k < 4; ++k) out[c + k] = four.v[k];
      }
    } else {
      for (int c = 0; c < kColumns; ++c) out[c] = row[column(c)];
    }
  }
};

// Over the 16 threads of one row.
template <class Join>
__device__ __forceinline__ float fold_row(float x, Join join) {
  for (int apart = kSide / 2; apart > 0; apart /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

__device__ __forceinline__ void write_scores(float* tile, const float (&scores)[kRows][kRows]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRows; ++j)
      tile[(ty + kSide * i) * kScoreStride + tx + kSide * j] = scores[i][j];
}

}  // namespace rubato::worker::cuda
