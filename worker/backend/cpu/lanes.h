// Sixteen floats that are added, multiplied and compared lane by lane. The compiler turns them into
// one AVX-512, two AVX2 or four SSE registers; the arithmetic of each lane is the same on all, so
// results do not depend on the instruction set. Sums over a row go into these lanes (element i into
// lane i mod 16) and are folded by a fixed tree at the end.
//
// Included only by sources that are compiled per instruction set, hence everything is static.
#pragma once

#include <cstdint>

#define RUBATO_INLINE static inline __attribute__((always_inline))

namespace rubato::worker::cpu {

using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using UnsignedLanes = std::uint32_t __attribute__((vector_size(64)));
using WideLanes = double __attribute__((vector_size(64)));
using HalfLanes = float __attribute__((vector_size(32)));
constexpr std::int64_t kLanes = 16;

RUBATO_INLINE Lanes load(const float* from) {
  Lanes x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
RUBATO_INLINE void store(float* to, const Lanes& x) { __builtin_memcpy(to, &x, sizeof x); }
RUBATO_INLINE Lanes splat(float x) { return Lanes{} + x; }
// The first `count` elements, zero (or `rest`) in the other lanes.
RUBATO_INLINE Lanes load_part(const float* from, std::int64_t count, float rest = 0.0f) {
  float part[kLanes];
  for (std::int64_t i = 0; i < kLanes; ++i) part[i] = i < count ? from[i] : rest;
  return load(part);
}
RUBATO_INLINE void store_part(float* to, const Lanes& x, std::int64_t count) {
  float part[kLanes];
  store(part, x);
  for (std::int64_t i = 0; i < count; ++i) to[i] = part[i];
}

// Folds 16 lanes: 8 pairs, 4, 2, 1.
RUBATO_INLINE float fold_sum(const Lanes& x) {
  float a[kLanes];
  store(a, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a[i] = a[i] + a[i + width];
  return a[0];
}
RUBATO_INLINE Lanes maximum(const Lanes& a, const Lanes& b) { return a > b ? a : b; }
RUBATO_INLINE float fold_max(const Lanes& x) {
  float a[kLanes];
  store(a, x);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
  return a[0];
}

RUBATO_INLINE IntLanes bits_of(const Lanes& x) { return (IntLanes)x; }
RUBATO_INLINE Lanes from_bits(const IntLanes& x) { return (Lanes)x; }

// e^x for x in [-87, 88]; beyond, the value at the border. Relative error below 2e-7. NaN stays
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial; times 2^n by building its bits.
RUBATO_INLINE Lanes exp_of(const Lanes& given) {
  Lanes x = given < -87.0f ? splat(-87.0f) : given;
  x = x > 88.0f ? splat(88.0f) : x;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Lanes shifted = x * 1.44269504088896341f + kRounder;
  const Lanes n = shifted - kRounder;
  Lanes r = x - n * 0.693359375f;  // ln 2 in two parts, the first exact in few bits
  r = r + n * 2.12194440e-4f;
  Lanes p = r * 1.3981999507e-3f + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const IntLanes whole = bits_of(shifted) - 0x4B400000;
  return p * from_bits((whole + 127) << 23);
}

}  // namespace rubato::worker::cpu
