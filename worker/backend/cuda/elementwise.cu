// Kernels that look at one element at a time: four by a thread where all pointers allow it.
#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/launch.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

constexpr int kThreads = 256;
constexpr float kRootTwoOverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

__device__ __forceinline__ float gate(float x) {
  const float u = kRootTwoOverPi * (x + kCubic * (x * x * x));
  return 1.0f / (1.0f + exp_of(-2.0f * u));
}

struct GeluForward {
  const float* x;
  float* y;
  template <int N>
  __device__ void run(std::int64_t i) const {
    Pack<float, N> values = load<N>(x + i);
    for (float& v : values.v) v = v * gate(v);
    store<N>(y + i, values);
  }
};

struct GeluBackward {
  const float* x;
  float* gradient;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const Pack<float, N> values = load<N>(x + i);
    Pack<float, N> out = load<N>(gradient + i);
    for (int k = 0; k < N; ++k) {
      const float v = values.v[k];
      const float s = gate(v);
      const float du = kRootTwoOverPi * (1.0f + (3.0f * kCubic) * (v * v));
      out.v[k] = out.v[k] * (s + v * (s * (1.0f - s)) * (2.0f * du));
    }
    store<N>(gradient + i, out);
  }
};

struct Add {
  const float* a;
  const float* b;
  float* out;
  template <int N>
  __device__ void run(std::int64_t i) const {
    Pack<float, N> sum = load<N>(a + i);
    const Pack<float, N> other = load<N>(b + i);
    for (int k = 0; k < N; ++k) sum.v[k] = sum.v[k] + other.v[k];
    store<N>(out + i, sum);
  }
};

struct AddI32 {
  const std::uint32_t* from;
  std::uint32_t* to;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const Pack<std::uint32_t, N> more = load<N>(from + i);
    Pack<std::uint32_t, N> sum = load<N>(to + i);
    for (int k = 0; k < N; ++k) sum.v[k] += more.v[k];
    store<N>(to + i, sum);
  }
};

struct AdamW {
  AdamWOp op;
  const float* g;
  float* p;
  float* m;
  float* v;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const Pack<float, N> gradient = load<N>(g + i);
    Pack<float, N> parameter = load<N>(p + i), first = load<N>(m + i), second = load<N>(v + i);
    for (int k = 0; k < N; ++k) {
      const float scaled = gradient.v[k] * op.scale;
      first.v[k] = first.v[k] + op.weight1 * (scaled - first.v[k]);
      second.v[k] = op.beta2 * second.v[k] + op.weight2 * (scaled * scaled);
      parameter.v[k] = parameter.v[k] * op.keep -
                       op.rate * (first.v[k] / (sqrtf(second.v[k]) / op.correction + op.epsilon));
    }
    store<N>(m + i, first);
    store<N>(v + i, second);
    store<N>(p + i, parameter);
  }
};

template <int N, class Op>
__global__ void __launch_bounds__(kThreads) map(std::int64_t n, Op op) {
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (i + N <= n) return op.template run<N>(i);
  for (; i < n; ++i) op.template run<1>(i);
}

bool are_aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  return true;
}

template <class Op>
void launch(RawStream stream, std::int64_t n, std::initializer_list<const void*> pointers, Op op) {
  if (n == 0) return;
  if (are_aligned(pointers))
    Grid{stream, blocks_for(n, 4 * kThreads), kThreads}.run(map<4, Op>, n, op);
  else
    Grid{stream, blocks_for(n, kThreads), kThreads}.run(map<1, Op>, n, op);
}

}  // namespace

void gelu_forward(RawStream stream, std::int64_t n, const float* x, float* y) {
  launch(stream, n, {x, y}, GeluForward{x, y});
}

void gelu_backward(RawStream stream, std::int64_t n, const float* x, float* gradient) {
  launch(stream, n, {x, gradient}, GeluBackward{x, gradient});
}

void add(RawStream stream, std::int64_t n, const float* a, const float* b, float* out) {
  launch(stream, n, {a, b, out}, Add{a, b, out});
}

void add_i32(RawStream stream, std::int64_t n, const std::int32_t* from, std::int32_t* to) {
  launch(
      stream, n, {from, to},
      AddI32{reinterpret_cast<const std::uint32_t*>(from), reinterpret_cast<std::uint32_t*>(to)});
}

void adamw(RawStream stream, std::int64_t n, const AdamWOp& op, const float* g, float* p, float* m,
           float* v) {
  launch(stream, n, {g, p, m, v}, AdamW{op, g, p, m, v});
}

}  // namespace rubato::worker::cuda
