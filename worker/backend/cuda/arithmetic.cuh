// Arithmetic of single elements, in the order of the CPU's kernels (worker/backend/cpu/lanes.h,
// exact.cc, elementwise.cc), and the sums and vectors that our kernels share. To be compiled with
// -fmad=false -ftz=true -prec-div=true -prec-sqrt=true.
#pragma once

#include <cstdint>

namespace rubato::worker::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// N floats or integers that are loaded and stored by one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& x) {
  *reinterpret_cast<Pack<T, N>*>(to) = x;
}

// 2^e, e in [-126, 127].
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// e^x for x in [-87, 88]; beyond, the value at the border. NaN stays NaN.
__device__ __forceinline__ float exp_of(float given) {
  float x = given < -87.0f ? -87.0f : given;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRounder = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = r * 1.3981999507e-3f + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const unsigned whole = static_cast<unsigned>(__float_as_int(shifted)) - 0x4B400000u;
  return p * __int_as_float(static_cast<int>((whole + 127u) << 23));
}

// log(x) for x >= 1.
__device__ __forceinline__ double log_of(double x) {
  long long bits = __double_as_longlong(x);
  long long k = (bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFll) | 0x3FF0000000000000ll;
  double m = __longlong_as_double(bits);
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

// Over a warp, by pairs 16, 8, 4, 2, 1 apart; every lane gets the result.
__device__ __forceinline__ float warp_sum(float x) {
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x = x + __shfl_xor_sync(kAllLanes, x, apart);
  return x;
}

constexpr unsigned blocks_for(std::int64_t work, std::int64_t of_a_block) {
  return static_cast<unsigned>((work + of_a_block - 1) / of_a_block);
}

}  // namespace rubato::worker::cuda
