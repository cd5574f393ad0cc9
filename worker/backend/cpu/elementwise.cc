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
