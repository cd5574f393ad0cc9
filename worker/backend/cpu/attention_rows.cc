// The row work of causal attention: softmax of a tile of scores, and its backward pass.
#include "worker/backend/cpu/lanes.h"
#include "worker/backend/cpu/ops_internal.h"

namespace rubato::worker::cpu::RUBATO_KERNEL_ISA {

// Row r of the tile is query first + r: columns 0 .. first + r count, the rest become zero.
void causal_softmax(std::int64_t rows, std::int64_t width, std::int64_t first, std::int64_t stride,
                    float* scores) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * stride;
    const std::int64_t count = first + r + 1;
    const std::int64_t whole = count - count % kLanes;
    const std::int64_t rest = count - whole;
    Lanes highest = splat(row[0]);
    for (std::int64_t i = 0; i < whole; i += kLanes) highest = maximum(load(row + i), highest);
    if (rest > 0) highest = maximum(load_part(row + whole, rest, row[0]), highest);
    const float top = fold_max(highest);
    Lanes sum = {};
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      const Lanes e = exp_of(load(row + i) - top);
      store(row + i, e);
      sum = sum + e;
    }
    if (rest > 0) {
      const Lanes e = exp_of(load_part(row + whole, rest, top) - top);
      store_part(row + whole, e, rest);
      sum = sum + load_part(row + whole, rest);
    }
    const float factor = 1.0f / fold_sum(sum);
    for (std::int64_t i = 0; i < count; ++i) row[i] = row[i] * factor;
    for (std::int64_t i = count; i < width; ++i) row[i] = 0.0f;
  }
}

// dscores holds d(probabilities) and becomes d(scores): p (dp - dot) scale, with
// dot = sum_j p_j dp_j = dout . out. Zero where p is zero, so the mask needs no second look.
void causal_softmax_backward(std::int64_t rows, std::int64_t width, std::int64_t first,
                             std::int64_t stride, std::int64_t head_size, float scale,
                             std::int64_t out_stride, const float* out, const float* dout,
                             const float* probabilities, float* dscores) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* o = out + r * out_stride;
    const float* d = dout + r * out_stride;
    const std::int64_t whole = head_size - head_size % kLanes;
    Lanes sum = {};
    for (std::int64_t i = 0; i < whole; i += kLanes) sum = sum + load(o + i) * load(d + i);
    if (whole < head_size)
      sum = sum + load_part(o + whole, head_size - whole) * load_part(d + whole, head_size - whole);
    const float dot = fold_sum(sum);
    const float* p = probabilities + r * stride;
    float* ds = dscores + r * stride;
    const std::int64_t count = first + r + 1;
    for (std::int64_t i = 0; i < count; ++i) ds[i] = p[i] * (ds[i] - dot) * scale;
    for (std::int64_t i = count; i < width; ++i) ds[i] = 0.0f;
  }
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
