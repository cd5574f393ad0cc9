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

__device__ __forceinline__ float logistic(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// Element i of (rows, width): its row, and where its gate lies; `width` on is what it multiplies.
__device__ __forceinline__ std::int64_t gate_at(std::int64_t i, std::int64_t width) {
  return i + i / width * width;
}

struct SwigluForward {
  std::int64_t width;
  const float* gate_up;
  float* y;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const float* at = gate_up + gate_at(i, width);
    const Pack<float, N> gates = load<N>(at);
    Pack<float, N> out = load<N>(at + width);
    for (int k = 0; k < N; ++k) out.v[k] = gates.v[k] * logistic(gates.v[k]) * out.v[k];
    store<N>(y + i, out);
  }
};

struct SwigluBackward {
  std::int64_t width;
  const float* gate_up;
  const float* dy;
  float* dgate_up;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const std::int64_t at = gate_at(i, width);
    Pack<float, N> gates = load<N>(gate_up + at), ups = load<N>(gate_up + at + width);
    const Pack<float, N> gradient = load<N>(dy + i);
    for (int k = 0; k < N; ++k) {
      const float g = gates.v[k], d = gradient.v[k];
      const float s = logistic(g);
      gates.v[k] = d * ups.v[k] * (s + g * (s * (1.0f - s)));
      ups.v[k] = d * (g * s);
    }
    store<N>(dgate_up + at, gates);
    store<N>(dgate_up + at + width, ups);
  }
};

// Over the (rows, heads, head_size / 2) pairs that angles turn.
struct Rotate {
  RotaryOp op;
  const float* angles;
  float* x;
  template <int N>
  __device__ void run(std::int64_t i) const {
    const std::int64_t half = op.head_size / 2;
    const std::int64_t pair = i % half, head = i / half % op.heads, row = i / half / op.heads;
    const float* angle = angles + row % op.length * op.head_size + pair;
    float* at = x + row * op.columns + head * op.head_size + pair;
    const float sign = op.is_inverse ? -1.0f : 1.0f;
    const Pack<float, N> cosines = load<N>(angle), sines = load<N>(angle + half);
    Pack<float, N> a = load<N>(at), b = load<N>(at + half);
    for (int k = 0; k < N; ++k) {
      const float first = a.v[k], second = b.v[k], sine = sign * sines.v[k];
      a.v[k] = first * cosines.v[k] - second * sine;
      b.v[k] = second * cosines.v[k] + first * sine;
    }
    store<N>(at, a);
    store<N>(at + half, b);
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

// `row`: elements that lie side by side; fours may not cross its end.
template <class Op>
void launch(RawStream stream, std::int64_t n, std::initializer_list<const void*> pointers, Op op,
            std::int64_t row = 4) {
  if (n == 0) return;
  if (are_aligned(pointers) && row % 4 == 0)
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

void swiglu_forward(RawStream stream, std::int64_t rows, std::int64_t width, const float* gate_up,
                    float* y) {
  launch(stream, rows * width, {gate_up, y}, SwigluForward{width, gate_up, y}, width);
}

void swiglu_backward(RawStream stream, std::int64_t rows, std::int64_t width, const float* gate_up,
                     const float* dy, float* dgate_up) {
  launch(stream, rows * width, {gate_up, dy, dgate_up},
         SwigluBackward{width, gate_up, dy, dgate_up}, width);
}

void rotate(RawStream stream, const RotaryOp& op, const float* angles, float* x) {
  const std::int64_t half = op.head_size / 2;
  launch(stream, op.rows * op.heads * half, {angles, x}, Rotate{op, angles, x},
         op.columns % 4 == 0 ? half : 1);
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
