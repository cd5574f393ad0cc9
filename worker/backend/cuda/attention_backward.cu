// See attention_tiles.cuh.
#include "worker/backend/cuda/attention_tiles.cuh"
#include "worker/backend/cuda/instructions.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

// dots[row] = dout . out over a head; a warp a row. dout is rounded where products with it are.
template <bool kIsBf16>
__global__ void __launch_bounds__(kThreads)
    dots_kernel(AttentionOp op, const float* __restrict__ out, const float* __restrict__ dout,
                float* __restrict__ dots) {
  const std::int64_t at =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= op.batch * op.heads * op.length) return;
  const std::int64_t row = at % op.length;
  const std::int64_t head = at / op.length % op.heads;
  const std::int64_t batch = at / op.length / op.heads;
  const std::int64_t base = ((batch * op.length + row) * op.heads + head) * op.head_size;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x % kWarp; i < op.head_size; i += kWarp) {
    const float given = dout[base + i];
    sum = fmaf(out[base + i], kIsBf16 ? to_bf16(given) : given, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dots[at] = sum;
}

// The probability of one score, and the gradient of that score before the scale.
__device__ __forceinline__ float probability(float score, float scale, float lse, bool is_seen) {
  return is_seen ? exp_of(score * scale - lse) : 0.0f;
}

// A block has a tile of keys and goes over the queries that see them, of one head after the other.
// Scores are transposed: rows are keys.
template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    backward_keys_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                         const float* __restrict__ lse, const float* __restrict__ dout,
                         const float* __restrict__ dots, float* __restrict__ dqkv) {
  float* keys = dynamic_shared;
  float* values = keys + kTileFloats<D>;
  float* queries = values + kTileFloats<D>;
  float* gradients = queries + kTileFloats<D>;
  float* weights = gradients + kTileFloats<D>;
  const std::int64_t group = op.heads / op.kv_heads;
  Head head = head_of(op, blockIdx.y * group);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  fill_tile<D>(keys, qkv + head.key, head.stride, first, op);
  fill_tile<D>(values, qkv + head.value, head.stride, first, op);
  Part<D> dkey, dvalue;
  dkey.clear();
  dvalue.clear();
  for (std::int64_t h = 0; h < group; ++h) {
    head = head_of(op, blockIdx.y * group + h);
    for (std::int64_t query = first; query < op.length; query += kTile) {
      __syncthreads();
      fill_tile<D>(queries, qkv + head.query, head.stride, query, op);
      fill_tile<D>(gradients, dout + head.out, head.hidden, query, op);
      __syncthreads();
      float p[kRows][kRows], ds[kRows][kRows];
      make_scores<D, 1>(keys, queries, p);
      make_scores<D, 1>(values, gradients, ds);
      for (int j = 0; j < kRows; ++j) {
        const std::int64_t row = query + tx + kSide * j;
        const bool is_row = row < op.length;
        const float row_lse = is_row ? lse[head.scalar + row] : 0.0f;
        const float dot = is_row ? dots[head.scalar + row] : 0.0f;
        for (int i = 0; i < kRows; ++i) {
          const bool is_seen = is_row && first + ty + kSide * i <= row;
          p[i][j] = probability(p[i][j], scale, row_lse, is_seen);
          ds[i][j] = p[i][j] * (ds[i][j] - dot) * scale;
        }
      }
      write_scores(weights, p);
      __syncthreads();
      dvalue.add(weights, gradients);
      __syncthreads();
      write_scores(weights, ds);
      __syncthreads();
      dkey.add(weights, queries);
    }
  }
  dkey.write(dqkv + head.key, head.stride, first, op);
  dvalue.write(dqkv + head.value, head.stride, first, op);
}

// A block has a tile of queries and goes over the keys that they see.
template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    backward_queries_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                            const float* __restrict__ lse, const float* __restrict__ dout,
                            const float* __restrict__ dots, float* __restrict__ dqkv) {
  float* queries = dynamic_shared;
  float* gradients = queries + kTileFloats<D>;
  float* keys = gradients + kTileFloats<D>;
  float* values = keys + kTileFloats<D>;
  float* weights = values + kTileFloats<D>;
  const Head head = head_of(op, blockIdx.y);
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  fill_tile<D>(queries, qkv + head.query, head.stride, first, op);
  fill_tile<D>(gradients, dout + head.out, head.hidden, first, op);
  float row_lse[kRows], dot[kRows];
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + ty + kSide * i;
    row_lse[i] = row < op.length ? lse[head.scalar + row] : 0.0f;
    dot[i] = row < op.length ? dots[head.scalar + row] : 0.0f;
  }
  Part<D> dquery;
  dquery.clear();
  for (std::int64_t key = 0; key <= first; key += kTile) {
    __syncthreads();
    fill_tile<D>(keys, qkv + head.key, head.stride, key, op);
    fill_tile<D>(values, qkv + head.value, head.stride, key, op);
    __syncthreads();
    float p[kRows][kRows], ds[kRows][kRows];
    make_scores<D, 1>(queries, keys, p);
    make_scores<D, 1>(gradients, values, ds);
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + ty + kSide * i;
      for (int j = 0; j < kRows; ++j) {
        const bool is_seen = row < op.length && key + tx + kSide * j <= row;
        p[i][j] = probability(p[i][j], scale, row_lse[i], is_seen);
        ds[i][j] = p[i][j] * (ds[i][j] - dot[i]) * scale;
      }
    }
    write_scores(weights, ds);
    __syncthreads();
    dquery.add(weights, keys);
  }
  dquery.write(dqkv + head.query, head.stride, first, op);
}

template <int D>
constexpr int kBackwardBytes =
    (4 * kTileFloats<D> + kScoreFloats) * static_cast<int>(sizeof(float));

template <int D>
void backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
              const float* dout, const float* dots, float* dqkv) {
  allow_shared(backward_keys_kernel<D>, kBackwardBytes<D>);
  allow_shared(backward_queries_kernel<D>, kBackwardBytes<D>);
  const Grid by_key{stream, grid_of(op, op.kv_heads), kThreads, kBackwardBytes<D>};
  by_key.run(backward_keys_kernel<D>, op, scale_of(op), qkv, lse, dout, dots, dqkv);
  const Grid by_query{stream, grid_of(op, op.heads), kThreads, kBackwardBytes<D>};
  by_query.run(backward_queries_kernel<D>, op, scale_of(op), qkv, lse, dout, dots, dqkv);
}

}  // namespace

std::int64_t attention_shared_bytes(std::int64_t head_size) {
  std::int64_t bytes = 0;
  with_size(head_size, [&]<int D>() { bytes = kBackwardBytes<D>; });
  return bytes;
}

void attention_dots(RawStream stream, const AttentionOp& op, const float* out, const float* dout,
                    bool is_bf16, float* dots) {
  const std::int64_t rows = op.batch * op.heads * op.length;
  const Grid grid{stream, blocks_for(rows, kThreads / kWarp), kThreads};
  grid.run(is_bf16 ? dots_kernel<true> : dots_kernel<false>, op, out, dout, dots);
}

void attention_backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
                        const float* out, const float* dout, float* dots, float* dqkv) {
  attention_dots(stream, op, out, dout, false, dots);
  with_size(op.head_size, [&]<int D>() { backward<D>(stream, op, qkv, lse, dout, dots, dqkv); });
}

}  // namespace rubato::worker::cuda
