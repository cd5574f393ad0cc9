// See attention_bf16.cuh.
#include "worker/backend/cuda/attention_bf16.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace bf16 {
namespace {

// Scores become probabilities, and what comes in `gradients` (the output's gradient times a value)
// the gradient of a score before the scale. `lse` is in units of log 2.
__device__ __forceinline__ void differentiate(float& score, float& gradient, float scale, float lse,
                                              float dot, bool is_seen) {
  score = is_seen ? exp2_of(fmaf(score, scale, -lse)) : 0.0f;
  gradient = score * (gradient - dot);
}

// A block has a tile of keys and goes over the queries that see them, of one head after the other.
// Scores are transposed: rows are keys.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_keys_bf16_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                              const float* __restrict__ lse, const float* __restrict__ dout,
                              const float* __restrict__ dots, float* __restrict__ dqkv) {
  std::uint16_t* keys = tile_at(0);
  std::uint16_t* values = tile_at(kTileBytes<D>);
  std::uint16_t* queries = tile_at(2 * kTileBytes<D>);
  std::uint16_t* gradients = tile_at(2 * kTileBytes<D> + kOthersBytes<D>);
  const std::int64_t group = op.heads / op.kv_heads;
  Head head = head_of(op, blockIdx.y * group);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  fill<D, kTile>(keys, qkv + head.key, head.stride, first, op);
  fill<D, kTile>(values, qkv + head.value, head.stride, first, op);
  Piece dkey[D / 8], dvalue[D / 8];
  clear(dkey);
  clear(dvalue);
  for (std::int64_t h = 0; h < group; ++h) {
    head = head_of(op, blockIdx.y * group + h);
    for (std::int64_t query = first; query < op.length; query += kOthers<D>) {
      fill_others<D>(queries, qkv + head.query, head.stride, gradients, dout + head.out,
                     head.hidden, query, op);
      Piece p[kOthers<D> / 8], ds[kOthers<D> / 8];
      clear(p);
      clear(ds);
      add_scores<D>(keys, warp_row(), queries, p);
      add_scores<D>(values, warp_row(), gradients, ds);
      // Of this lane's first key, counted from the first query here.
      const int key = static_cast<int>(first - query) + warp_row() + lane() / 4;
      const int rows = static_cast<int>(min(op.length - query, std::int64_t{kOthers<D>}));
#pragma unroll
      for (int n = 0; n < kOthers<D> / 8; ++n)
        for (int i = 0; i < 2; ++i) {
          const int row = 8 * n + lane() % 4 * 2 + i;
          const bool is_row = row < rows;
          const float row_lse = is_row ? lse[head.scalar + query + row] * kLog2E : 0.0f;
          const float dot = is_row ? dots[head.scalar + query + row] : 0.0f;
          for (int half = 0; half < 2; ++half) {
            const bool is_seen = is_row && key + 8 * half <= row;
            differentiate(p[n][2 * half + i], ds[n][2 * half + i], scale * kLog2E, row_lse, dot,
                          is_seen);
          }
        }
      add_product<D>(p, gradients, dvalue);
      add_product<D>(ds, queries, dkey);
    }
  }
  write<D>(dqkv + head.key, head.stride, first, dkey, {scale, scale}, op);
  write<D>(dqkv + head.value, head.stride, first, dvalue, {1.0f, 1.0f}, op);
}

// A block has a tile of queries and goes over the keys that they see.
template <int D>
__global__ void __launch_bounds__(kThreads)
    backward_queries_bf16_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                                 const float* __restrict__ lse, const float* __restrict__ dout,
                                 const float* __restrict__ dots, float* __restrict__ dqkv) {
  std::uint16_t* queries = tile_at(0);
  std::uint16_t* gradients = tile_at(kTileBytes<D>);
  std::uint16_t* keys = tile_at(2 * kTileBytes<D>);
  std::uint16_t* values = tile_at(2 * kTileBytes<D> + kOthersBytes<D>);
  const Head head = head_of(op, blockIdx.y);
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  fill<D, kTile>(queries, qkv + head.query, head.stride, first, op);
  fill<D, kTile>(gradients, dout + head.out, head.hidden, first, op);
  float row_lse[2], dot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + warp_row() + lane() / 4 + 8 * half;
    row_lse[half] = row < op.length ? lse[head.scalar + row] * kLog2E : 0.0f;
    dot[half] = row < op.length ? dots[head.scalar + row] : 0.0f;
  }
  Piece dquery[D / 8];
  clear(dquery);
  for (std::int64_t key = 0; key < first + kTile; key += kOthers<D>) {
    fill_others<D>(keys, qkv + head.key, head.stride, values, qkv + head.value, head.stride, key,
                   op);
    Piece p[kOthers<D> / 8], ds[kOthers<D> / 8];
    clear(p);
    clear(ds);
    add_scores<D>(queries, warp_row(), keys, p);
    add_scores<D>(gradients, warp_row(), values, ds);
    // Of this lane's first query, counted from the first key here.
    const int row = static_cast<int>(first - key) + warp_row() + lane() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kOthers<D> / 8; ++n)
        for (int i = 0; i < 2; ++i) {
          const bool is_seen = 8 * n + lane() % 4 * 2 + i <= row + 8 * half;
          differentiate(p[n][2 * half + i], ds[n][2 * half + i], scale * kLog2E, row_lse[half],
                        dot[half], is_seen);
        }
    add_product<D>(ds, keys, dquery);
  }
  write<D>(dqkv + head.query, head.stride, first, dquery, {scale, scale}, op);
}

template <int D>
void backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
              const float* dout, const float* dots, float* dqkv) {
  constexpr int kBytes = 2 * kTileBytes<D> + 2 * kOthersBytes<D>;
  allow_shared(backward_keys_bf16_kernel<D>, kBytes);
  allow_shared(backward_queries_bf16_kernel<D>, kBytes);
  const Grid by_key{stream, grid_of(op, op.kv_heads), kThreads, kBytes};
  by_key.run(backward_keys_bf16_kernel<D>, op, scale_of(op), qkv, lse, dout, dots, dqkv);
  const Grid by_query{stream, grid_of(op, op.heads), kThreads, kBytes};
  by_query.run(backward_queries_bf16_kernel<D>, op, scale_of(op), qkv, lse, dout, dots, dqkv);
}

}  // namespace
}  // namespace bf16

void attention_backward_bf16(RawStream stream, const AttentionOp& op, const float* qkv,
                             const float* lse, const float* out, const float* dout, float* dots,
                             float* dqkv) {
  attention_dots(stream, op, out, dout, true, dots);
  with_size(op.head_size,
            [&]<int D>() { bf16::backward<D>(stream, op, qkv, lse, dout, dots, dqkv); });
}

}  // namespace rubato::worker::cuda
