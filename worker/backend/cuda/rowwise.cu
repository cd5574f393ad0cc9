// Kernels that reduce along rows or columns: layernorm, RMSNorm, softmax with cross-entropy, column
// sums.
#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/launch.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

constexpr int kRowWarps = 4;  // rows of a block, a warp each

// Sum over a row of term(i), in the CPU's order: two times 16 lanes are the 32 of a warp, and a
// remainder of fewer than 16 elements goes into the second 16.
template <class Term>
__device__ __forceinline__ float row_sum(std::int64_t c, Term term) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t whole = c - c % kWarp;
  float sum = 0.0f;
#pragma unroll 4
  for (std::int64_t i = lane; i < whole; i += kWarp) sum = sum + term(i);
  const auto rest = static_cast<int>(c - whole);
  const int at = rest < kWarp / 2 ? lane - kWarp / 2 : lane;
  if (at >= 0 && at < rest) sum = sum + term(whole + at);
  return warp_sum(sum);
}

__global__ void __launch_bounds__(kRowWarps* kWarp)
    layernorm_forward_kernel(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                             const float* addend, const float* __restrict__ weight,
                             const float* __restrict__ bias, float* sum, float* __restrict__ y,
                             float* __restrict__ mean, float* __restrict__ rstd) {
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const float* row = x + r * c;
  if (addend != nullptr) {
    const float* other = addend + r * c;
    float* out = sum + r * c;
    for (std::int64_t i = lane; i < c; i += kWarp) out[i] = row[i] + other[i];
    __syncwarp();
    row = out;
  }
  const float inverse = 1.0f / static_cast<float>(c);
  const float average = row_sum(c, [&](std::int64_t i) { return row[i]; }) * inverse;
  const float variance = row_sum(c,
                                 [&](std::int64_t i) {
                                   const float d = row[i] - average;
                                   return d * d;
                                 }) *
                         inverse;
  const float scale = 1.0f / sqrtf(variance + epsilon);
  if (lane == 0) {
    mean[r] = average;
    rstd[r] = scale;
  }
  float* to = y + r * c;
  for (std::int64_t i = lane; i < c; i += kWarp)
    to[i] = (row[i] - average) * scale * weight[i] + bias[i];
}

// With n = (x - mean) rstd and g = dy w:  dx += rstd (g - mean(g) - n mean(g n)).
__global__ void __launch_bounds__(kRowWarps* kWarp)
    layernorm_backward_x(std::int64_t rows, std::int64_t c, const float* __restrict__ x,
                         const float* __restrict__ weight, const float* __restrict__ mean,
                         const float* __restrict__ rstd, const float* __restrict__ dy,
                         float* __restrict__ dx) {
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const float* row = x + r * c;
  const float* d = dy + r * c;
  const float average = mean[r];
  const float scale = rstd[r];
  const float inverse = 1.0f / static_cast<float>(c);
  const float g_mean = row_sum(c, [&](std::int64_t i) { return d[i] * weight[i]; }) * inverse;
  const float gn_mean = row_sum(c,
                                [&](std::int64_t i) {
                                  const float normal = (row[i] - average) * scale;
                                  return d[i] * weight[i] * normal;
                                }) *
                        inverse;
  float* to = dx + r * c;
  for (std::int64_t i = lane; i < c; i += kWarp) {
    const float normal = (row[i] - average) * scale;
    to[i] = to[i] + (d[i] * weight[i] - g_mean - normal * gn_mean) * scale;
  }
}

__global__ void __launch_bounds__(kRowWarps* kWarp)
    rmsnorm_forward_kernel(std::int64_t rows, std::int64_t c, float epsilon, const float* x,
                           const float* addend, const float* __restrict__ weight, float* sum,
                           float* __restrict__ y, float* __restrict__ rstd) {
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const float* row = x + r * c;
  if (addend != nullptr) {
    const float* other = addend + r * c;
    float* out = sum + r * c;
    for (std::int64_t i = lane; i < c; i += kWarp) out[i] = row[i] + other[i];
    __syncwarp();
    row = out;
  }
  const float inverse = 1.0f / static_cast<float>(c);
  const float square = row_sum(c, [&](std::int64_t i) { return row[i] * row[i]; }) * inverse;
  const float scale = 1.0f / sqrtf(square + epsilon);
  if (lane == 0) rstd[r] = scale;
  float* to = y + r * c;
  for (std::int64_t i = lane; i < c; i += kWarp) to[i] = row[i] * scale * weight[i];
}

// With n = x rstd and g = dy w:  dx += rstd (g - n mean(g n)).
__global__ void __launch_bounds__(kRowWarps* kWarp)
    rmsnorm_backward_x(std::int64_t rows, std::int64_t c, const float* __restrict__ x,
                       const float* __restrict__ weight, const float* __restrict__ rstd,
                       const float* __restrict__ dy, float* __restrict__ dx) {
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (r >= rows) return;
  const float* row = x + r * c;
  const float* d = dy + r * c;
  const float scale = rstd[r];
  const float inverse = 1.0f / static_cast<float>(c);
  const float gn_mean =
      row_sum(c, [&](std::int64_t i) { return d[i] * weight[i] * (row[i] * scale); }) * inverse;
  float* to = dx + r * c;
  for (std::int64_t i = threadIdx.x % kWarp; i < c; i += kWarp)
    to[i] = to[i] + (d[i] * weight[i] - row[i] * scale * gn_mean) * scale;
}

// Sums over rows. A block has eight columns, 32 bytes of each row; 128 threads a column take every
// 128th row each, and their sums are added by pairs 64, 32, … apart. Stripe 0 gets the result.
constexpr int kColumns = 8;
constexpr int kStripes = 128;

__device__ __forceinline__ float sum_of_stripes(float mine, float (*shared)[kColumns]) {
  const int column = threadIdx.x % kColumns;
  const int stripe = threadIdx.x / kColumns;
  shared[stripe][column] = mine;
  for (int apart = kStripes / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (stripe < apart)
      shared[stripe][column] = shared[stripe][column] + shared[stripe + apart][column];
  }
  return stripe == 0 ? shared[0][column] : 0.0f;
}

__global__ void __launch_bounds__(kColumns* kStripes)
    column_sum_kernel(std::int64_t rows, std::int64_t columns, const float* __restrict__ x,
                      float* __restrict__ out) {
  __shared__ float shared[kStripes][kColumns];
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int stripe = threadIdx.x / kColumns;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t r = stripe; r < rows; r += kStripes) sum = sum + x[r * columns + column];
  }
  const float total = sum_of_stripes(sum, shared);
  if (stripe == 0 && column < columns) out[column] = total;
}

__global__ void __launch_bounds__(kColumns* kStripes)
    layernorm_backward_weights(std::int64_t rows, std::int64_t c, const float* __restrict__ x,
                               const float* __restrict__ mean, const float* __restrict__ rstd,
                               const float* __restrict__ dy, float* __restrict__ dweight,
                               float* __restrict__ dbias) {
  __shared__ float shared[2][kStripes][kColumns];
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int stripe = threadIdx.x / kColumns;
  float weight = 0.0f, bias = 0.0f;
  if (column < c) {
#pragma unroll 4
    for (std::int64_t r = stripe; r < rows; r += kStripes) {
      const float d = dy[r * c + column];
      weight = weight + d * ((x[r * c + column] - mean[r]) * rstd[r]);
      bias = bias + d;
    }
  }
  const float whole_weight = sum_of_stripes(weight, shared[0]);
  const float whole_bias = sum_of_stripes(bias, shared[1]);
  if (stripe != 0 || column >= c) return;
  dweight[column] = whole_weight;
  dbias[column] = whole_bias;
}

__global__ void __launch_bounds__(kColumns* kStripes)
    rmsnorm_backward_weight(std::int64_t rows, std::int64_t c, const float* __restrict__ x,
                            const float* __restrict__ rstd, const float* __restrict__ dy,
                            float* __restrict__ dweight) {
  __shared__ float shared[kStripes][kColumns];
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  const int stripe = threadIdx.x / kColumns;
  float weight = 0.0f;
  if (column < c) {
#pragma unroll 4
    for (std::int64_t r = stripe; r < rows; r += kStripes)
      weight = weight + dy[r * c + column] * (x[r * c + column] * rstd[r]);
  }
  const float whole = sum_of_stripes(weight, shared);
  if (stripe == 0 && column < c) dweight[column] = whole;
}

// ---- Softmax with cross-entropy: a block has a row ----

constexpr int kClassThreads = 512;
constexpr int kClassWarps = kClassThreads / kWarp;

template <class Join>
__device__ __forceinline__ float block_fold(float x, float* shared, Join join) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, apart));
  __syncthreads();  // the last fold's results have been read
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = shared[threadIdx.x % kClassWarps];
  for (int apart = kClassWarps / 2; apart > 0; apart /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

__device__ __forceinline__ float larger(float a, float b) { return a > b ? a : b; }

__global__ void __launch_bounds__(kClassThreads)
    cross_entropy_kernel(std::int64_t columns, std::int64_t vocabulary, float scale,
                         bool write_gradient, const std::int32_t* __restrict__ targets,
                         float* __restrict__ logits, float* __restrict__ losses) {
  __shared__ float shared[kClassWarps];
  float* row = logits + static_cast<std::int64_t>(blockIdx.x) * columns;
  const std::int32_t target = targets[blockIdx.x];
  float highest = row[0];
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kClassThreads)
    highest = larger(row[i], highest);
  const float top = block_fold(highest, shared, larger);
  const float hit = row[target];
  __syncthreads();  // all have read `hit` before anybody overwrites it

  float sum = 0.0f;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < vocabulary; i += kClassThreads) {
    const float e = exp_of(row[i] - top);
    if (write_gradient) row[i] = e;
    sum = sum + e;
  }
  const float total = block_fold(sum, shared, [](float a, float b) { return a + b; });
  // The highest logit adds e^0 = 1, so a smaller total means that something was not finite.
  if (threadIdx.x == 0)
    losses[blockIdx.x] = total >= 1.0f
                             ? static_cast<float>(log_of(static_cast<double>(total))) + (top - hit)
                             : __int_as_float(0x7FC00000);
  if (!write_gradient) return;
  const float factor = scale / total;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < columns; i += kClassThreads) {
    const float gradient = i < vocabulary ? row[i] * factor : 0.0f;
    row[i] = i == target ? gradient - scale : gradient;
  }
}

}  // namespace

void layernorm_forward(RawStream stream, std::int64_t rows, std::int64_t c, float epsilon,
                       const float* x, const float* addend, const float* weight, const float* bias,
                       float* sum, float* y, float* mean, float* rstd) {
  if (rows == 0) return;
  Grid{stream, blocks_for(rows, kRowWarps), kRowWarps * kWarp}.run(
      layernorm_forward_kernel, rows, c, epsilon, x, addend, weight, bias, sum, y, mean, rstd);
}

void layernorm_backward(RawStream stream, std::int64_t rows, std::int64_t c, const float* x,
                        const float* weight, const float* mean, const float* rstd, const float* dy,
                        float* dx, float* dweight, float* dbias) {
  if (rows > 0)
    Grid{stream, blocks_for(rows, kRowWarps), kRowWarps * kWarp}.run(layernorm_backward_x, rows, c,
                                                                     x, weight, mean, rstd, dy, dx);
  Grid{stream, blocks_for(c, kColumns), kColumns * kStripes}.run(
      layernorm_backward_weights, rows, c, x, mean, rstd, dy, dweight, dbias);
}

void rmsnorm_forward(RawStream stream, std::int64_t rows, std::int64_t c, float epsilon,
                     const float* x, const float* addend, const float* weight, float* sum, float* y,
                     float* rstd) {
  if (rows == 0) return;
  Grid{stream, blocks_for(rows, kRowWarps), kRowWarps * kWarp}.run(
      rmsnorm_forward_kernel, rows, c, epsilon, x, addend, weight, sum, y, rstd);
}

void rmsnorm_backward(RawStream stream, std::int64_t rows, std::int64_t c, const float* x,
                      const float* weight, const float* rstd, const float* dy, float* dx,
                      float* dweight) {
  if (rows > 0)
    Grid{stream, blocks_for(rows, kRowWarps), kRowWarps * kWarp}.run(rmsnorm_backward_x, rows, c, x,
                                                                     weight, rstd, dy, dx);
  Grid{stream, blocks_for(c, kColumns), kColumns * kStripes}.run(rmsnorm_backward_weight, rows, c,
                                                                 x, rstd, dy, dweight);
}

void column_sum(RawStream stream, std::int64_t rows, std::int64_t columns, const float* x,
                float* out) {
  Grid{stream, blocks_for(columns, kColumns), kColumns * kStripes}.run(column_sum_kernel, rows,
                                                                       columns, x, out);
}

void softmax_cross_entropy(RawStream stream, std::int64_t rows, std::int64_t columns,
                           std::int64_t vocabulary, float scale, bool write_gradient,
                           const std::int32_t* targets, float* logits, float* losses) {
  if (rows == 0) return;
  Grid{stream, static_cast<unsigned>(rows), kClassThreads}.run(
      cross_entropy_kernel, columns, vocabulary, scale, write_gradient, targets, logits, losses);
}

}  // namespace rubato::worker::cuda
