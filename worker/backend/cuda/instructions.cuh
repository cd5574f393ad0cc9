// Instructions of PTX that CUDA C++ has no name for, a function each, and what it does for a
// compiler that is not nvcc (tests/emulator): there a warp's registers are seen by lanes_of(x,
// all), which gives each lane what every lane gave. All lanes of a warp call them together.
//
// A fragment is a lane's part of a small matrix; g = lane / 4 and t = lane % 4 below. Two bf16 lie
// in one register, the one of the lower index in the lower half.
#pragma once

#include "worker/backend/cuda/arithmetic.cuh"

#include <cstdint>

namespace rubato::worker::cuda {

#ifndef __CUDACC__
namespace emulated {
inline unsigned bf16_of(float x) {
  const auto bits = static_cast<unsigned>(__float_as_int(x));
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
// Of a pair, the lower (0) or the upper one (1).
inline float half_of(unsigned pair, int which) {
  return __int_as_float(static_cast<int>(which == 0 ? pair << 16 : pair & 0xffff0000u));
}
inline std::uint64_t both(unsigned low, unsigned high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}
inline unsigned one_of(std::uint64_t two, int which) {
  return static_cast<unsigned>(two >> (32 * which));
}

// Of four 8 x 8 matrices, whose rows the lanes give: the two elements of this lane.
inline void matrices(const std::uint16_t* row, bool is_transposed, unsigned (&out)[4]) {
  const Pack<unsigned, 4> mine = load<4>(reinterpret_cast<const unsigned*>(row));
  std::uint64_t left[kWarp], right[kWarp];
  lanes_of(both(mine.v[0], mine.v[1]), left);
  lanes_of(both(mine.v[2], mine.v[3]), right);
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto element = [&](int matrix, int along) {
    const int of_row = is_transposed ? along : g, column = is_transposed ? g : along;
    const std::uint64_t four = (column < 4 ? left : right)[8 * matrix + of_row];
    return static_cast<unsigned>(four >> (16 * (column % 4)) & 0xffff);
  };
  for (int m = 0; m < 4; ++m) out[m] = element(m, 2 * t) | element(m, 2 * t + 1) << 16;
}
}  // namespace emulated
#endif

// To the nearest bf16, to an even one in the middle.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#ifdef __CUDACC__
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#else
  return emulated::bf16_of(low) | emulated::bf16_of(high) << 16;
#endif
}

__device__ __forceinline__ float to_bf16(float x) {
  return __int_as_float(static_cast<int>(pack_bf16(x, 0.0f) << 16));
}

// 2^x to 2 ulp; below 2^-126 it is 0.
__device__ __forceinline__ float exp2_of(float x) {
#ifdef __CUDACC__
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return x < -126.0f ? 0.0f : exp2f(x);
#endif
}

// Four 8 x 8 matrices of bf16 from shared memory. Lane i gives the address of row i % 8 of matrix
// i / 8, 16 bytes aligned to as many. out[m] is of matrix m row g, columns 2t and 2t + 1.
__device__ __forceinline__ void load_matrices(const std::uint16_t* row, unsigned (&out)[4]) {
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#else
  emulated::matrices(row, false, out);
#endif
}
// The same of the transposed matrices: rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_transposed(const std::uint16_t* row, unsigned (&out)[4]) {
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
#else
  emulated::matrices(row, true, out);
#endif
}

// d += a b, of 16 x 16 and 16 x 8 elements in bf16; d is f32, its products are exact.
//   a[0], a[1]: rows g and g + 8, columns 2t and 2t + 1;  a[2], a[3]: columns 2t + 8 and 2t + 9
//   b0: rows 2t and 2t + 1 of column g;  b1: rows 2t + 8 and 2t + 9
//   d[0], d[1]: row g, columns 2t and 2t + 1;  d[2], d[3]: row g + 8
// A GPU adds in an order of its own kind; the emulation by rising index.
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#ifdef __CUDACC__
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  std::uint64_t upper[kWarp], lower[kWarp], right[kWarp];
  lanes_of(emulated::both(a[0], a[2]), upper);
  lanes_of(emulated::both(a[1], a[3]), lower);
  lanes_of(emulated::both(b0, b1), right);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t* rows = (i < 2 ? upper : lower) + lane / 4 * 4;
    const std::uint64_t* columns = right + (lane % 4 * 2 + i % 2) * 4;
    for (int k = 0; k < 16; ++k) {
      const unsigned left = emulated::one_of(rows[k % 8 / 2], k / 8);
      const unsigned of_b = emulated::one_of(columns[k % 8 / 2], k / 8);
      d[i] = d[i] + emulated::half_of(left, k % 2) * emulated::half_of(of_b, k % 2);
    }
  }
#endif
}

}  // namespace rubato::worker::cuda
