// The exact reduction and the squared norm (worker/model/exact_sum.h, worker/backend/cpu/exact.cc).
// A warp has a block of 256 elements: two times four a lane, so that all loads are 16 bytes wide.
#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/launch.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

constexpr int kBlock = 256;
constexpr int kWarps = 8;  // of a CUDA block
constexpr int kQuads = 2;  // 16-byte pieces of a lane
constexpr int kInfinityBits = 0x7F800000;
constexpr float kBroken = -1.0f;

struct Place {
  std::int64_t block;
  int lane;
  // The first of the four elements that piece `quad` of this lane holds, in the block.
  __device__ int element(int quad) const { return (quad * kWarp + lane) * 4; }
};
__device__ __forceinline__ Place place() {
  return {static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp,
          static_cast<int>(threadIdx.x % kWarp)};
}

using Floats = Pack<float, 4>;
using Words = Pack<std::uint32_t, 4>;

// The bits of max |x| over the block: for floats without sign, order of bits is order of values.
__device__ __forceinline__ int max_bits(const Floats (&x)[kQuads]) {
  int top = 0;
  for (const Floats& four : x)
    for (const float v : four.v) top = max(top, __float_as_int(v) & 0x7FFFFFFF);
  return static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<unsigned>(top)));
}

// The largest |x * scale| of the block; kBroken when it is not finite or does not fit 31 bits.
__device__ __forceinline__ float scaled_top(const Floats (&x)[kQuads], float scale) {
  const int bits = max_bits(x);
  const float top = __int_as_float(bits) * scale;
  return bits < kInfinityBits && top < 2147483648.0f ? top : kBroken;
}

__device__ __forceinline__ std::uint32_t guard_of(float largest, int guard_shift) {
  const auto q = static_cast<std::uint32_t>(largest);
  const std::uint32_t unit = 1u << guard_shift;
  return (q + unit - 1) >> guard_shift;
}

__device__ __forceinline__ std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ __forceinline__ std::uint64_t mix_wide(std::uint64_t key, std::int64_t number) {
  std::uint64_t x = key + static_cast<std::uint64_t>(number + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__device__ __forceinline__ std::uint32_t block_key(std::uint64_t key, std::int64_t block) {
  return static_cast<std::uint32_t>(mix_wide(key, block) >> 32);
}

__device__ __forceinline__ std::uint32_t round_by(float x, std::uint32_t r) {
  const int negative = __float_as_int(x) >> 31;  // all ones, or zero
  const float size = fabsf(x);
  const int whole = __float2int_rz(size);
  const float part = size - __int2float_rn(whole);  // exact
  const int threshold = __float2int_rz(part * 2147483648.0f);
  const auto drawn = static_cast<int>((r ^ static_cast<std::uint32_t>(negative)) >> 1);
  const int rounded = whole + (drawn < threshold ? 1 : 0);
  return static_cast<std::uint32_t>((rounded ^ negative) - negative);
}

struct ToNearest {
  __device__ void begin(std::int64_t) {}
  __device__ std::uint32_t round(float x, int) const {
    return static_cast<std::uint32_t>(__float2int_rn(x));
  }
  __device__ static float largest(float top) { return rintf(top); }
};

struct ByDither {
  std::uint64_t key;
  std::uint32_t offset;
  std::uint32_t counter = 0;
  __device__ void begin(std::int64_t block) { counter = block_key(key, block); }
  __device__ std::uint32_t round(float x, int element) const {
    constexpr std::uint32_t kStride = 0x9e3779b9u;
    return round_by(x, mix(counter + static_cast<std::uint32_t>(element) * kStride) + offset);
  }
  __device__ static float largest(float top) { return ceilf(top); }
};

template <class Rounding>
__global__ void __launch_bounds__(kWarps* kWarp)
    integer_add(std::int64_t blocks, int fraction_bits, int guard_shift, Rounding rounding,
                const std::int32_t* __restrict__ exponents, const float* __restrict__ gradient,
                std::uint32_t* __restrict__ sums, std::uint32_t* __restrict__ guards) {
  const Place here = place();
  if (here.block >= blocks) return;
  const float* g = gradient + here.block * kBlock;
  Floats x[kQuads];
  for (int quad = 0; quad < kQuads; ++quad) x[quad] = load<4>(g + here.element(quad));
  const float scale = power_of_two(fraction_bits - exponents[here.block]);
  const float top = scaled_top(x, scale);
  if (top == 0.0f) return;
  if (top == kBroken) {
    if (here.lane == 0) guards[here.block] += 1u << (31 - guard_shift);
    return;
  }
  std::uint32_t* s = sums + here.block * kBlock;
  rounding.begin(here.block);
  for (int quad = 0; quad < kQuads; ++quad) {
    const int first = here.element(quad);
    Words sum = load<4>(s + first);
    for (int k = 0; k < 4; ++k) sum.v[k] += rounding.round(x[quad].v[k] * scale, first + k);
    store<4>(s + first, sum);
  }
  if (here.lane == 0) guards[here.block] += guard_of(Rounding::largest(top), guard_shift);
}

__global__ void __launch_bounds__(kWarps* kWarp)
    dequantise_kernel(std::int64_t blocks, int fraction_bits, float factor,
                      const std::int32_t* __restrict__ exponents,
                      const std::int32_t* __restrict__ sums, float* __restrict__ gradient) {
  const Place here = place();
  if (here.block >= blocks) return;
  const float scale = power_of_two(exponents[here.block] - fraction_bits);
  const std::int64_t base = here.block * kBlock;
  for (int quad = 0; quad < kQuads; ++quad) {
    const Pack<std::int32_t, 4> sum = load<4>(sums + base + here.element(quad));
    Floats out;
    for (int k = 0; k < 4; ++k) out.v[k] = __int2float_rn(sum.v[k]) * scale * factor;
    store<4>(gradient + base + here.element(quad), out);
  }
}

__global__ void __launch_bounds__(kWarps* kWarp)
    block_exponents_kernel(std::int64_t blocks, std::int32_t zero, const float* __restrict__ x,
                           std::int32_t* __restrict__ out) {
  const Place here = place();
  if (here.block >= blocks) return;
  Floats values[kQuads];
  for (int quad = 0; quad < kQuads; ++quad)
    values[quad] = load<4>(x + here.block * kBlock + here.element(quad));
  const int bits = max_bits(values);
  const int exponent = (bits >> 23) - 127;
  const bool is_power = (bits & 0x007FFFFF) == 0;
  if (here.lane == 0)
    out[here.block] = bits < 0x00800000 ? zero : is_power ? exponent : exponent + 1;
}

// A chunk goes into 16 sums, element i into sum i mod 16; sums i and i + 8 are added, then those
// eight in their order.
constexpr int kNormSums = 16;
constexpr int kNormThreads = 128;
__global__ void __launch_bounds__(kNormThreads)
    squared_norm_kernel(std::int64_t n, std::int64_t chunk, std::int64_t chunks,
                        const float* __restrict__ x, double* __restrict__ out) {
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x) * kNormThreads + threadIdx.x) / kNormSums;
  const int mine = threadIdx.x % kNormSums;
  const std::int64_t first = at * chunk;
  const std::int64_t end = at < chunks ? min(first + chunk, n) : first;
  double sum = 0.0;
#pragma unroll 8
  for (std::int64_t i = first + mine; i < end; i += kNormSums) {
    const auto wide = static_cast<double>(x[i]);
    sum = sum + wide * wide;
  }
  sum = sum + __shfl_down_sync(kAllLanes, sum, kNormSums / 2, kNormSums);
  double total = 0.0;
  for (int i = 0; i < kNormSums / 2; ++i) total = total + __shfl_sync(kAllLanes, sum, i, kNormSums);
  if (mine == 0 && at < chunks) out[at] = total;
}

// A warp has a chunk. What a lane loads stands in the same four columns of 16 each time, so that it
// keeps their sums and their sums by rows, and weighs them once.
constexpr int kColumns = 16;
constexpr int kBlocksWeighing = 6;  // on a multiprocessor: three quarters of its warps
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksWeighing)
    weighted_sums_kernel(std::int64_t n, std::int64_t chunk, std::int64_t chunks,
                         const std::int32_t* __restrict__ x, std::int64_t* __restrict__ out) {
  const Place here = place();
  if (here.block >= chunks) return;
  const std::int32_t* from = x + here.block * chunk;
  const int count = static_cast<int>(min(chunk, n - here.block * chunk));
  std::int64_t sum[4] = {}, by_row[4] = {};
  const int whole = count / (4 * kWarp) * (4 * kWarp);
#pragma unroll 2
  for (int i = here.lane * 4; i < whole; i += 4 * kWarp) {
    const Pack<std::int32_t, 4> four = load<4>(from + i);
    for (int k = 0; k < 4; ++k) {
      sum[k] += four.v[k];
      by_row[k] += static_cast<std::int64_t>(four.v[k]) * (i / kColumns);
    }
  }
  for (int i = whole + here.lane * 4; i < count; i += 4 * kWarp)
    for (int k = 0; k < 4 && i + k < count; ++k) {
      sum[k] += from[i + k];
      by_row[k] += static_cast<std::int64_t>(from[i + k]) * (i / kColumns);
    }
  std::uint64_t total = 0;
  for (int k = 0; k < 4; ++k) {
    const int column = (here.lane * 4 + k) % kColumns;
    total += (mix_wide(0, 2 * column) | 1) * static_cast<std::uint64_t>(sum[k]);
    total += (mix_wide(0, 2 * column + 1) & ~1ull) * static_cast<std::uint64_t>(by_row[k]);
  }
  for (int apart = kWarp / 2; apart > 0; apart /= 2)
    total += __shfl_xor_sync(kAllLanes, total, apart);
  if (here.lane == 0) out[here.block] = static_cast<std::int64_t>(total);
}

template <class Rounding>
void launch_add(RawStream stream, std::int64_t n, int fraction_bits, int guard_shift,
                const Rounding& rounding, const std::int32_t* exponents, const float* gradient,
                std::int32_t* sums, std::int32_t* guards) {
  const std::int64_t blocks = n / kBlock;
  if (blocks == 0) return;
  Grid{stream, blocks_for(blocks, kWarps), kWarps * kWarp}.run(
      integer_add<Rounding>, blocks, fraction_bits, guard_shift, rounding, exponents, gradient,
      reinterpret_cast<std::uint32_t*>(sums), reinterpret_cast<std::uint32_t*>(guards));
}

}  // namespace

void quantise_add(RawStream stream, std::int64_t n, int fraction_bits, int guard_shift,
                  const std::int32_t* exponents, const float* gradient, std::int32_t* sums,
                  std::int32_t* guards) {
  launch_add(stream, n, fraction_bits, guard_shift, ToNearest(), exponents, gradient, sums, guards);
}

void dither_add(RawStream stream, std::int64_t n, const DitherOp& op, const std::int32_t* exponents,
                const float* gradient, std::int32_t* sums, std::int32_t* guards) {
  launch_add(stream, n, op.fraction_bits, op.guard_shift, ByDither{op.key, op.offset}, exponents,
             gradient, sums, guards);
}

void dequantise(RawStream stream, std::int64_t n, int fraction_bits, float factor,
                const std::int32_t* exponents, const std::int32_t* sums, float* gradient) {
  const std::int64_t blocks = n / kBlock;
  if (blocks == 0) return;
  Grid{stream, blocks_for(blocks, kWarps), kWarps * kWarp}.run(
      dequantise_kernel, blocks, fraction_bits, factor, exponents, sums, gradient);
}

void block_exponents(RawStream stream, std::int64_t n, std::int32_t zero, const float* x,
                     std::int32_t* out) {
  const std::int64_t blocks = n / kBlock;
  if (blocks == 0) return;
  Grid{stream, blocks_for(blocks, kWarps), kWarps * kWarp}.run(block_exponents_kernel, blocks, zero,
                                                               x, out);
}

void squared_norm_chunks(RawStream stream, std::int64_t n, std::int64_t chunk, const float* x,
                         double* out) {
  const std::int64_t chunks = (n + chunk - 1) / chunk;
  if (chunks == 0) return;
  Grid{stream, blocks_for(chunks * kNormSums, kNormThreads), kNormThreads}.run(
      squared_norm_kernel, n, chunk, chunks, x, out);
}

void weighted_sums(RawStream stream, std::int64_t n, std::int64_t chunk, const std::int32_t* x,
                   std::int64_t* out) {
  const std::int64_t chunks = (n + chunk - 1) / chunk;
  if (chunks == 0) return;
  Grid{stream, blocks_for(chunks, kWarps), kWarps * kWarp}.run(weighted_sums_kernel, n, chunk,
                                                               chunks, x, out);
}

}  // namespace rubato::worker::cuda
