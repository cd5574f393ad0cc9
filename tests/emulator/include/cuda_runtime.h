// In the place of CUDA's own header of this name, and put before every .cu file, as nvcc does: what
// lets g++ compile our kernels as they are. A kernel is a plain function that runs once for each
// thread of each block, on a stack of its own (tests/emulator/block.h).
//
// Shared memory is thread-local: a block runs on one host thread at a time, and that is the one
// kind of storage that a plain and an `extern` declaration inside a function may both have.
// Instructions of a warp are functions of the same name: each gathers what its lanes gave, and
// computes from that.
#pragma once

#include "tests/emulator/block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include <cuda_runtime_api.h>

#define __global__
#define __device__
#define __host__
#define __shared__ thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)

inline constexpr uint3& threadIdx = rubato::emulator::here.thread;
inline constexpr uint3& blockIdx = rubato::emulator::here.block;
inline constexpr dim3& blockDim = rubato::emulator::here.threads;
inline constexpr dim3& gridDim = rubato::emulator::here.blocks;

using std::max;
using std::min;

// ---- Starting a kernel ----

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  using Packed = std::tuple<void (*)(Parameters...), Parameters...>;
  const auto run = [](const void* packed) {
    std::apply([](auto* function, const auto&... values) { function(values...); },
               *static_cast<const Packed*>(packed));
  };
  const auto drop = [](const void* packed) { delete static_cast<const Packed*>(packed); };
  const auto* packed = new Packed(kernel, std::forward<Arguments>(arguments)...);
  return rubato::emulator::launch(
      *config, {reinterpret_cast<const void*>(kernel), run, packed, sizeof(Packed), drop});
}

// ---- Bits and numbers ----

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

namespace rubato::emulator {
// Conversions of the GPU end at the borders, and make 0 of NaN.
inline int saturated(float whole) {
  if (std::isnan(whole)) return 0;
  if (whole >= 2147483648.0f) return INT32_MAX;
  if (whole <= -2147483648.0f) return INT32_MIN;
  return static_cast<int>(whole);
}

template <class T>
std::uint64_t packed(T x) {
  static_assert(sizeof x <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class T>
T unpacked(std::uint64_t bits) {
  T x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// What lane `from` of my warp gives; lanes are counted within groups of `width`, and one
// outside of mine leaves me with what is my own.
template <class T>
T shuffled(unsigned mask, T x, int from, int width, Site site) {
  const int lane = lane_in_warp();
  const int first = lane / width * width;
  const int source = from < first || from >= first + width ? lane : from;
  std::uint64_t all[kWarpLanes];
  gather({mask, packed(x), source, site}, all);
  return unpacked<T>(all[source]);
}
}  // namespace rubato::emulator

inline int __float2int_rn(float x) { return rubato::emulator::saturated(rintf(x)); }
inline int __float2int_rz(float x) { return rubato::emulator::saturated(truncf(x)); }

// ---- Threads that meet ----
// The last argument, which nobody gives, is the line that the call stands in.

inline void __syncthreads(rubato::emulator::Site site = rubato::emulator::Site::current()) {
  rubato::emulator::meet_block(site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       rubato::emulator::Site site = rubato::emulator::Site::current()) {
  rubato::emulator::meet_warp(mask, site);
}

template <class T>
T __shfl_sync(unsigned mask, T x, int from, int width = 32,
              rubato::emulator::Site site = rubato::emulator::Site::current()) {
  const int first = rubato::emulator::lane_in_warp() / width * width;
  return rubato::emulator::shuffled(mask, x, first + (from & (width - 1)), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int apart, int width = 32,
                  rubato::emulator::Site site = rubato::emulator::Site::current()) {
  return rubato::emulator::shuffled(mask, x, rubato::emulator::lane_in_warp() ^ apart, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned apart, int width = 32,
                   rubato::emulator::Site site = rubato::emulator::Site::current()) {
  const int from = rubato::emulator::lane_in_warp() + static_cast<int>(apart);
  return rubato::emulator::shuffled(mask, x, from, width, site);
}
// Not of CUDA: for what stands in the place of an instruction of PTX (instructions.cuh).
inline void lanes_of(std::uint64_t x, std::uint64_t (&all)[rubato::emulator::kWarpLanes],
                     rubato::emulator::Site site = rubato::emulator::Site::current()) {
  rubato::emulator::gather({0xffffffffu, x, rubato::emulator::lane_in_warp(), site}, all);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x,
                                  rubato::emulator::Site site = rubato::emulator::Site::current()) {
  std::uint64_t all[rubato::emulator::kWarpLanes];
  rubato::emulator::gather({mask, x, rubato::emulator::lane_in_warp(), site}, all);
  unsigned top = 0;
  for (int lane = 0; lane < rubato::emulator::kWarpLanes; ++lane)
    if ((mask >> lane & 1) != 0) top = max(top, static_cast<unsigned>(all[lane]));
  return top;
}
