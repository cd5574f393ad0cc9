// See attention_bf16.cuh.
#include "worker/backend/cuda/attention_bf16.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace bf16 {
namespace {

// Lower than any score, and finite, so that differences of it are.
constexpr float kLowest = -1e30f;
constexpr double kLn2 = 0.69314718055994531;

// Of this lane's rows g and g + 8: the highest score so far, and this lane's part of the sum of
// 2^(score - highest). Scores are in units of log 2.
struct Running {
  float highest[2] = {kLowest, kLowest};
  float sum[2] = {0.0f, 0.0f};
};

// Scores become 2^(score - highest), masked; what was added before is scaled to the new maximum.
template <int D, int N>
__device__ __forceinline__ void soften(Piece (&scores)[N], float scale, std::int64_t first_row,
                                       std::int64_t first_key, Running& running,
                                       Piece (&out)[D / 8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The last key that the row sees, counted from the first one here.
    const int last = static_cast<int>(first_row - first_key) + warp_row() + lane() / 4 + 8 * half;
    float highest = running.highest[half];
#pragma unroll
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = 8 * n + lane() % 4 * 2 + i <= last ? score * scale : kLowest;
        highest = score > highest ? score : highest;
      }
    highest = fold_row(highest, [](float a, float b) { return a > b ? a : b; });
    const float kept = exp2_of(running.highest[half] - highest);
    float sum = running.sum[half] * kept;
#pragma unroll
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * half + i];
        score = exp2_of(score - highest);
        sum = sum + score;
      }
    running.sum[half] = sum;
    running.highest[half] = highest;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      for (int i = 0; i < 2; ++i) out[n][2 * half + i] = out[n][2 * half + i] * kept;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads)
    forward_bf16_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                        float* __restrict__ lse, float* __restrict__ out) {
  std::uint16_t* queries = tile_at(0);
  std::uint16_t* keys = tile_at(kTileBytes<D>);
  std::uint16_t* values = tile_at(kTileBytes<D> + kOthersBytes<D>);
  const Head head = head_of(op, blockIdx.y);
  // Long rows first: the last blocks to run are short.
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  fill<D, kTile>(queries, qkv + head.query, head.stride, first, op);
  Running running;
  Piece sums[D / 8];
  clear(sums);
  for (std::int64_t key = 0; key < first + kTile; key += kOthers<D>) {
    fill_others<D>(keys, qkv + head.key, head.stride, values, qkv + head.value, head.stride, key,
                   op);
    Piece scores[kOthers<D> / 8];
    clear(scores);
    add_scores<D>(queries, warp_row(), keys, scores);
    soften<D>(scores, scale, first, key, running, sums);
    add_product<D>(scores, values, sums);
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = fold_row(running.sum[half], [](float a, float b) { return a + b; });
    factors[half] = 1.0f / sum;
    const std::int64_t row = first + warp_row() + lane() / 4 + 8 * half;
    if (lane() % 4 == 0 && row < op.length)
      lse[head.scalar + row] = static_cast<float>(
          static_cast<double>(running.highest[half]) * kLn2 + log_of(static_cast<double>(sum)));
  }
  write<D>(out + head.out, head.hidden, first, sums, factors, op);
}

template <int D>
void forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse, float* out) {
  constexpr int kBytes = kTileBytes<D> + 2 * kOthersBytes<D>;
  allow_shared(forward_bf16_kernel<D>, kBytes);
  const Grid grid{stream, grid_of(op, op.heads), kThreads, kBytes};
  grid.run(forward_bf16_kernel<D>, op, scale_of(op) * kLog2E, qkv, lse, out);
}

}  // namespace
}  // namespace bf16

void attention_forward_bf16(RawStream stream, const AttentionOp& op, const float* qkv, float* lse,
                            float* out) {
  with_size(op.head_size, [&]<int D>() { bf16::forward<D>(stream, op, qkv, lse, out); });
}

}  // namespace rubato::worker::cuda
