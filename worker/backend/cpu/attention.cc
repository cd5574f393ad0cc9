// Causal attention on the CPU. Per (sequence, head) the scores are made in tiles of kTile queries,
// each against the keys up to its own end: what lies above the diagonal beyond the tile is never
// computed. The probabilities are kept for the backward pass: batch * heads * length^2 floats.
#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/cpu/float_mode.h"
#include "worker/backend/cpu/gemm.h"
#include "worker/backend/pointers.h"

#include <algorithm>
#include <cmath>

namespace rubato::worker::cpu {

namespace {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kPageElements = 4096 / sizeof(float);

float score_scale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

}  // namespace

std::int64_t CpuKernels::attention_saved(const AttentionShape& shape) const {
  return shape.batch * shape.heads * shape.length * shape.length;
}

std::int64_t CpuKernels::attention_untouched(const AttentionShape& shape) const {
  if (shape.length <= kPageElements) return 0;  // a row begins on each page
  std::int64_t above = 0;
  for (std::int64_t first = 0; first < shape.length; first += kTile) {
    const std::int64_t rows = std::min(kTile, shape.length - first);
    above += rows * (shape.length - first - rows);
  }
  return shape.batch * shape.heads * above;
}

std::int64_t CpuKernels::attention_workspace(const AttentionShape& shape) const {
  return kTile * shape.length;
}

void CpuKernels::attention_forward(Stream&, const AttentionShape& shape, ConstBuffer qkv,
                                   Buffer saved, Buffer out) {
  const std::int64_t t = shape.length;
  const std::int64_t c = shape.hidden();
  const std::int64_t d = shape.head_size;
  const std::int64_t row = shape.columns();
  CHECK_EQ(qkv.count(), shape.batch * t * row);
  CHECK_EQ(out.count(), shape.batch * t * c);
  CHECK_GE(saved.count(), attention_saved(shape));
  const float scale = score_scale(shape);
  const FloatMode mode;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const float* q = f32(qkv) + b * t * row + h * d;
      const float* k = f32(qkv) + b * t * row + c + h / shape.group() * d;
      const float* v = k + shape.kv_hidden();
      float* p = f32(saved) + (b * shape.heads + h) * t * t;
      float* o = f32(out) + b * t * c + h * d;
      for (std::int64_t first = 0; first < t; first += kTile) {
        const std::int64_t rows = std::min(kTile, t - first);
        const std::int64_t keys = first + rows;
        float* tile = p + first * t;
        sgemm(false, true, rows, keys, d, scale, q + first * row, row, k, row, 0.0f, tile, t);
        ops_.causal_softmax(rows, keys, first, t, tile);
        sgemm(false, false, rows, d, keys, 1.0f, tile, t, v, row, 0.0f, o + first * c, c);
      }
    }
  }
}

void CpuKernels::attention_backward(Stream&, const AttentionShape& shape, ConstBuffer qkv,
                                    ConstBuffer saved, ConstBuffer out, ConstBuffer out_gradient,
                                    Buffer workspace, Buffer qkv_gradient) {
  const std::int64_t t = shape.length;
  const std::int64_t c = shape.hidden();
  const std::int64_t d = shape.head_size;
  const std::int64_t row = shape.columns();
  CHECK(qkv.count() == shape.batch * t * row && qkv_gradient.count() == qkv.count());
  CHECK(out.count() == shape.batch * t * c && out_gradient.count() == out.count());
  CHECK(saved.count() >= attention_saved(shape) && workspace.count() >= attention_workspace(shape));
  const float scale = score_scale(shape);
  float* ds = f32(workspace);
  const FloatMode mode;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const float* q = f32(qkv) + b * t * row + h * d;
      const float* k = f32(qkv) + b * t * row + c + h / shape.group() * d;
      const float* v = k + shape.kv_hidden();
      const float* p = f32(saved) + (b * shape.heads + h) * t * t;
      const float* o = f32(out) + b * t * c + h * d;
      const float* dout = f32(out_gradient) + b * t * c + h * d;
      float* dq = f32(qkv_gradient) + b * t * row + h * d;
      float* dk = f32(qkv_gradient) + b * t * row + c + h / shape.group() * d;
      float* dv = dk + shape.kv_hidden();
      // From the last tile up: it sees all keys, so that of the group's first head overwrites, and
      // the others add.
      const std::int64_t tiles = (t + kTile - 1) / kTile;
      for (std::int64_t tile = tiles - 1; tile >= 0; --tile) {
        const std::int64_t first = tile * kTile;
        const std::int64_t rows = std::min(kTile, t - first);
        const std::int64_t keys = first + rows;
        const float beta = tile == tiles - 1 && h % shape.group() == 0 ? 0.0f : 1.0f;
        const float* dtile = dout + first * c;
        sgemm(true, false, keys, d, rows, 1.0f, p + first * t, t, dtile, c, beta, dv, row);
        sgemm(false, true, rows, keys, d, 1.0f, dtile, c, v, row, 0.0f, ds, t);
        ops_.causal_softmax_backward(rows, keys, first, t, d, scale, c, o + first * c, dtile,
                                     p + first * t, ds);
        sgemm(false, false, rows, d, keys, 1.0f, ds, t, k, row, 0.0f, dq + first * row, row);
        sgemm(true, false, keys, d, rows, 1.0f, ds, t, q + first * row, row, beta, dk, row);
      }
    }
  }
}

}  // namespace rubato::worker::cpu
