// Kernels that reduce along a row: layernorm, RMSNorm, softmax with cross-entropy, column sums.
#include "worker/backend/cpu/lanes.h"
#include "worker/backend/cpu/ops_internal.h"

namespace rubato::worker::cpu::RUBATO_KERNEL_ISA {

namespace {

// Sum over a row of f(lanes of the row, offset, count of valid elements).
template <class Term>
RUBATO_INLINE float row_sum(std::int64_t c, Term term) {
  Lanes even = {}, odd = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= c; i += 2 * kLanes) {
    even = even + term(i, kLanes);
    odd = odd + term(i + kLanes, kLanes);
  }
  if (i + kLanes <= c) {
    even = even + term(i, kLanes);
    i += kLanes;
  }
  if (i < c) odd = odd + term(i, c - i);
  return fold_sum(even + odd);
}

RUBATO_INLINE Lanes load_any(const float* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_part(from, count);
}

// log(x) for x >= 1: x = m 2^k with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1)).
double log_of(double x) {
  std::int64_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof bits);
  std::int64_t k = (bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  double m = 0.0;
  __builtin_memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    k = k + 1;
  }
  const double z = (m - 1.0) / (m + 1.0);
  const double z2 = z * z;
  double series = 1.0 / 19;
  for (int n = 17; n >= 1; n -= 2) series = series * z2 + 1.0 / n;
  return static_cast<double>(k) * 0.69314718055994531 + 2.0 * z * series;
}

}  // namespace

void layernorm_forward(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                       const float* addend, const float* weight, const float* bias, float* sum,
                       float* y, float* mean, float* rstd) {
  const float inverse = 1.0f / static_cast<float>(c);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * c;
    if (addend != nullptr) {
      const float* other = addend + r * c;
      float* out = sum + r * c;
      for (std::int64_t i = 0; i < c; ++i) out[i] = row[i] + other[i];
      row = out;
    }
    const float average =
        row_sum(c, [&](std::int64_t i, std::int64_t n) { return load_any(row + i, n); }) * inverse;
    const float variance =
        row_sum(c,
                [&](std::int64_t i, std::int64_t n) {
                  // Missing lanes are loaded as the average: they add zero.
                  const Lanes d =
                      (n == kLanes ? load(row + i) : load_part(row + i, n, average)) - average;
                  return d * d;
                }) *
        inverse;
    const float scale = 1.0f / __builtin_sqrtf(variance + epsilon);
    mean[r] = average;
    rstd[r] = scale;
    float* to = y + r * c;
    for (std::int64_t i = 0; i < c; ++i) to[i] = (row[i] - average) * scale * weight[i] + bias[i];
  }
}

void layernorm_backward(std::int64_t rows, std::int64_t c, const float* x, const float* weight,
                        const float* mean, const float* rstd, const float* dy, float* dx,
                        float* __restrict dweight, float* __restrict dbias) {
  const float inverse = 1.0f / static_cast<float>(c);
  for (std::int64_t i = 0; i < c; ++i) dweight[i] = dbias[i] = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * c;
    const float* d = dy + r * c;
    const float average = mean[r];
    const float scale = rstd[r];
    // With n = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - n mean(g n)).
    const float g_mean =
        row_sum(c, [&](std::int64_t i,
                       std::int64_t n) { return load_any(d + i, n) * load_any(weight + i, n); }) *
        inverse;
    const float gn_mean = row_sum(c,
                                  [&](std::int64_t i, std::int64_t n) {
                                    const Lanes normal = (load_any(row + i, n) - average) * scale;
                                    return load_any(d + i, n) * load_any(weight + i, n) * normal;
                                  }) *
                          inverse;
    float* __restrict to = dx + r * c;
    for (std::int64_t i = 0; i < c; ++i) {
      const float normal = (row[i] - average) * scale;
      dweight[i] += d[i] * normal;
      dbias[i] += d[i];
      to[i] += (d[i] * weight[i] - g_mean - normal * gn_mean) * scale;
    }
  }
}

void rmsnorm_forward(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                     const float* addend, const float* weight, float* sum, float* y, float* rstd) {
  const float inverse = 1.0f / static_cast<float>(c);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * c;
    if (addend != nullptr) {
      const float* other = addend + r * c;
      float* out = sum + r * c;
      for (std::int64_t i = 0; i < c; ++i) out[i] = row[i] + other[i];
      row = out;
    }
    const float square = row_sum(c,
                                 [&](std::int64_t i, std::int64_t n) {
                                   const Lanes v = load_any(row + i, n);
                                   return v * v;
                                 }) *
                         inverse;
    const float scale = 1.0f / __builtin_sqrtf(square + epsilon);
    rstd[r] = scale;
    float* to = y + r * c;
    for (std::int64_t i = 0; i < c; ++i) to[i] = row[i] * scale * weight[i];
  }
}

void rmsnorm_backward(std::int64_t rows, std::int64_t c, const float* x, const float* weight,
                      const float* rstd, const float* dy, float* dx, float* __restrict dweight) {
  const float inverse = 1.0f / static_cast<float>(c);
  for (std::int64_t i = 0; i < c; ++i) dweight[i] = 0.0f;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * c;
    const float* d = dy + r * c;
    const float scale = rstd[r];
    // With n = x rstd and g = dy w:  dx = rstd (g - n mean(g n)).
    const float gn_mean = row_sum(c,
                                  [&](std::int64_t i, std::int64_t n) {
                                    const Lanes normal = load_any(row + i, n) * scale;
                                    return load_any(d + i, n) * load_any(weight + i, n) * normal;
                                  }) *
                          inverse;
    float* __restrict to = dx + r * c;
    for (std::int64_t i = 0; i < c; ++i) {
      const float normal = row[i] * scale;
      dweight[i] += d[i] * normal;
      to[i] += (d[i] * weight[i] - normal * gn_mean) * scale;
    }
  }
}

void column_sum(std::int64_t rows, std::int64_t columns, const float* __restrict x,
                float* __restrict out) {
  for (std::int64_t i = 0; i < columns; ++i) out[i] = 0.0f;
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* a = x + r * columns;
    const float* b = a + columns;
    const float* c = b + columns;
    const float* d = c + columns;
    for (std::int64_t i = 0; i < columns; ++i) out[i] += (a[i] + b[i]) + (c[i] + d[i]);
  }
  for (; r < rows; ++r) {
    const float* a = x + r * columns;
    for (std::int64_t i = 0; i < columns; ++i) out[i] += a[i];
  }
}

void broadcast_row(std::int64_t rows, std::int64_t columns, const float* __restrict row,
                   float* __restrict out) {
  for (std::int64_t r = 0; r < rows; ++r)
    __builtin_memcpy(out + r * columns, row, static_cast<std::uint64_t>(columns) * sizeof(float));
}

void softmax_cross_entropy(std::int64_t rows, std::int64_t columns, std::int64_t vocabulary,
                           float scale, bool write_gradient, const std::int32_t* targets,
                           float* logits, float* losses) {
  const std::int64_t whole = vocabulary - vocabulary % kLanes;
  const std::int64_t rest = vocabulary - whole;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = logits + r * columns;
    Lanes highest = splat(row[0]);
    for (std::int64_t i = 0; i < whole; i += kLanes) highest = maximum(load(row + i), highest);
    if (rest > 0) highest = maximum(load_part(row + whole, rest, row[0]), highest);
    const float top = fold_max(highest);
    const float hit = row[targets[r]];
    const float total = row_sum(vocabulary, [&](std::int64_t i, std::int64_t n) {
      // Missing lanes would add e^0: they are put back to zero below.
      Lanes e = exp_of((n == kLanes ? load(row + i) : load_part(row + i, n, top)) - top);
      if (n < kLanes) {
        float part[kLanes];
        store(part, e);
        e = load_part(part, n);
      }
      if (write_gradient) {
        if (n == kLanes)
          store(row + i, e);
        else
          store_part(row + i, e, n);
      }
      return e;
    });
    // The highest logit adds e^0 = 1, so a smaller total means that something was not finite.
    losses[r] = total >= 1.0f ? static_cast<float>(log_of(static_cast<double>(total))) + (top - hit)
                              : __builtin_nanf("");
    if (!write_gradient) continue;
    const float factor = scale / total;
    for (std::int64_t i = 0; i < vocabulary; ++i) row[i] = row[i] * factor;
    row[targets[r]] = row[targets[r]] - scale;
    for (std::int64_t i = vocabulary; i < columns; ++i) row[i] = 0.0f;
  }
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
