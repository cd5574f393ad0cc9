// Kernels that look at one element at a time.
#include "worker/backend/cpu/lanes.h"
#include "worker/backend/cpu/ops_internal.h"

namespace rubato::worker::cpu::RUBATO_KERNEL_ISA {

namespace {

constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

// 0.5 (1 + tanh u) = 1 / (1 + e^(-2u)), so GELU with tanh is x times a logistic function of
// u = sqrt(2/pi) (x + 0.044715 x^3): no tanh is needed and nothing cancels.
RUBATO_INLINE Lanes gate(const Lanes& x) {
  const Lanes u = kRootTwoOverPi * (x + kCubic * (x * x * x));
  return 1.0f / (1.0f + exp_of(-2.0f * u));
}

RUBATO_INLINE Lanes logistic(const Lanes& x) { return 1.0f / (1.0f + exp_of(-x)); }

RUBATO_INLINE Lanes gelu_slope(const Lanes& x) {
  const Lanes s = gate(x);
  const Lanes du = kRootTwoOverPi * (1.0f + (3.0f * kCubic) * (x * x));
  return s + x * (s * (1.0f - s)) * (2.0f * du);
}

}  // namespace

void gelu_forward(std::int64_t n, const float* x, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes v = load(x + i);
    store(y + i, v * gate(v));
  }
  if (i < n) {
    const Lanes v = load_part(x + i, n - i);
    store_part(y + i, v * gate(v), n - i);
  }
}

void gelu_backward(std::int64_t n, const float* x, float* gradient) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store(gradient + i, load(gradient + i) * gelu_slope(load(x + i)));
  if (i < n)
    store_part(gradient + i, load_part(gradient + i, n - i) * gelu_slope(load_part(x + i, n - i)),
               n - i);
}

void swiglu_forward(std::int64_t rows, std::int64_t width, const float* gate_up, float* y) {
  for (std::int64_t r = 0; r < rows; ++r, gate_up += 2 * width, y += width) {
    const float* up = gate_up + width;
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Lanes g = load(gate_up + i);
      store(y + i, g * logistic(g) * load(up + i));
    }
    if (i == width) continue;
    const Lanes g = load_part(gate_up + i, width - i);
    store_part(y + i, g * logistic(g) * load_part(up + i, width - i), width - i);
  }
}

void swiglu_backward(std::int64_t rows, std::int64_t width, const float* gate_up, const float* dy,
                     float* dgate_up) {
  for (std::int64_t r = 0; r < rows; ++r, gate_up += 2 * width, dgate_up += 2 * width, dy += width)
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const std::int64_t n = width - i < kLanes ? width - i : kLanes;
      const Lanes g = load_part(gate_up + i, n);
      const Lanes d = load_part(dy + i, n);
      const Lanes s = logistic(g);
      store_part(dgate_up + i, d * load_part(gate_up + width + i, n) * (s + g * (s * (1.0f - s))),
                 n);
      store_part(dgate_up + width + i, d * (g * s), n);
    }
}

void rotate(const RotaryOp& op, const float* angles, float* x) {
  const std::int64_t half = op.head_size / 2;
  const float sign = op.is_inverse ? -1.0f : 1.0f;
  for (std::int64_t r = 0; r < op.rows; ++r) {
    const float* cosines = angles + r % op.length * op.head_size;
    const float* sines = cosines + half;
    for (std::int64_t h = 0; h < op.heads; ++h) {
      float* __restrict a = x + r * op.columns + h * op.head_size;
      float* __restrict b = a + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float first = a[i], second = b[i], sine = sign * sines[i];
        a[i] = first * cosines[i] - second * sine;
        b[i] = second * cosines[i] + first * sine;
      }
    }
  }
}

// Half a unit of the last place that stays, or a bit less where that place is even, carries into
// it. NaN stays NaN, infinity infinity, and what is larger than all of bf16 becomes infinity.
void to_bf16(std::int64_t n, const float* __restrict x, std::uint16_t* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    const std::uint32_t quiet = bits | 0x00400000;  // NaN
    y[i] = static_cast<std::uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
  }
}

void add(std::int64_t n, const float* a, const float* b, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void adamw(std::int64_t n, const AdamWOp& op, const float* __restrict g, float* __restrict p,
           float* __restrict m, float* __restrict v) {
  const float keep = 1.0f - op.learning_rate * op.weight_decay;
  const float rate = op.learning_rate / op.first_correction;
  const float weight1 = 1.0f - op.beta1;
  const float weight2 = 1.0f - op.beta2;
  const float beta2 = op.beta2;
  const float epsilon = op.epsilon;
  const float correction = op.second_correction;
  const float scale = op.gradient_scale;
  for (std::int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale;
    const float first = m[i] + weight1 * (gradient - m[i]);
    const float second = beta2 * v[i] + weight2 * (gradient * gradient);
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * keep - rate * (first / (__builtin_sqrtf(second) / correction + epsilon));
  }
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
