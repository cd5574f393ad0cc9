// See attention_tiles.cuh.
#include "worker/backend/cuda/attention_tiles.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

// Lower than any score, and finite, so that differences of it are.
constexpr float kLowest = -1e30f;

// The running maximum and sum of a thread's rows.
struct Running {
  float highest[kRows];
  float sum[kRows];
  __device__ void clear() {
    for (int i = 0; i < kRows; ++i) {
      highest[i] = kLowest;
      sum[i] = 0.0f;
    }
  }
};

// Scores become exp(score - maximum), masked; what was summed before is scaled to the new maximum.
template <int D>
__device__ __forceinline__ void soften(float (&scores)[kRows][kRows], float scale,
                                       std::int64_t first_row, std::int64_t first_key,
                                       Running& running, Part<D>& part) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first_row + ty + kSide * i;
    float highest = running.highest[i];
    for (int j = 0; j < kRows; ++j) {
      const bool is_seen = first_key + tx + kSide * j <= row;
      scores[i][j] = is_seen ? scores[i][j] * scale : kLowest;
      highest = scores[i][j] > highest ? scores[i][j] : highest;
    }
    highest = fold_row(highest, [](float a, float b) { return a > b ? a : b; });
    float sum = 0.0f;
    for (int j = 0; j < kRows; ++j) {
      const bool is_seen = first_key + tx + kSide * j <= row;
      scores[i][j] = is_seen ? exp_of(scores[i][j] - highest) : 0.0f;
      sum = sum + scores[i][j];
    }
    sum = fold_row(sum, [](float a, float b) { return a + b; });
    const float kept = exp_of(running.highest[i] - highest);
    running.sum[i] = running.sum[i] * kept + sum;
    running.highest[i] = highest;
    for (float& x : part.v[i]) x = x * kept;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    forward_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                   float* __restrict__ lse, float* __restrict__ out) {
  float* queries = dynamic_shared;
  float* keys = queries + kTileFloats<D>;
  float* values = keys + kTileFloats<D>;
  float* weights = values + kTileFloats<D>;
  const Head head = head_of(op, blockIdx.y);
  // Long rows first: the last blocks to run are short.
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  fill_tile<D>(queries, qkv + head.query, head.stride, first, op);
  Running running;
  running.clear();
  Part<D> part;
  part.clear();
  for (std::int64_t key = 0; key <= first; key += kTile) {
    __syncthreads();  // the last tile has been read
    fill_tile<D>(keys, qkv + head.key, head.stride, key, op);
    fill_tile<D>(values, qkv + head.value, head.stride, key, op);
    __syncthreads();
    float scores[kRows][kRows];
    make_scores<D, 4>(queries, keys, scores);
    soften<D>(scores, scale, first, key, running, part);
    write_scores(weights, scores);
    __syncthreads();
    part.add(weights, values);
  }
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + ty + kSide * i;
    const float factor = 1.0f / running.sum[i];
    for (float& x : part.v[i]) x = x * factor;
    if (tx == 0 && row < op.length)
      lse[head.scalar + row] =
          running.highest[i] + static_cast<float>(log_of(static_cast<double>(running.sum[i])));
  }
  part.write(out + head.out, head.hidden, first, op);
}

template <int D>
constexpr int kForwardBytes = (3 * kTileFloats<D> + kScoreFloats) * static_cast<int>(sizeof(float));
template <int D>
void forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse, float* out) {
  allow_shared(forward_kernel<D>, kForwardBytes<D>);
  const Grid grid{stream, grid_of(op, op.heads), kThreads, kForwardBytes<D>};
  grid.run(forward_kernel<D>, op, scale_of(op), qkv, lse, out);
}

}  // namespace

void attention_forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse,
                       float* out) {
  with_size(op.head_size, [&]<int D>() { forward<D>(stream, op, qkv, lse, out); });
}

}  // namespace rubato::worker::cuda
