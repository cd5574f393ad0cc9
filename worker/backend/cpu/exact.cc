// The exact reduction and the squared norm. A block is 256 elements (kBlockElements).
#include "worker/backend/cpu/lanes.h"
#include "worker/backend/cpu/ops_internal.h"

namespace rubato::worker::cpu::RUBATO_KERNEL_ISA {

namespace {

constexpr std::int64_t kBlock = 256;
constexpr std::int32_t kInfinityBits = 0x7F800000;

// 2^e as a float, e in [-126, 127].
RUBATO_INLINE float power_of_two(int e) {
  const std::int32_t bits = (e + 127) << 23;
  float out = 0.0f;
  __builtin_memcpy(&out, &bits, sizeof out);
  return out;
}

// The bits of max |x| over a block: for floats without sign, order of bits is order of values, and
// NaN is above infinity.
RUBATO_INLINE std::int32_t max_bits(const float* x) {
  IntLanes highest = {};
  for (std::int64_t i = 0; i < kBlock; i += kLanes) {
    const IntLanes bits = bits_of(load(x + i)) & 0x7FFFFFFF;
    highest = bits > highest ? bits : highest;
  }
  std::int32_t top = 0;
  for (int i = 0; i < kLanes; ++i) top = highest[i] > top ? highest[i] : top;
  return top;
}

}  // namespace

void quantise_add(std::int64_t n, int fraction_bits, int guard_shift, const std::int32_t* exponents,
                  const float* __restrict gradient, std::int32_t* __restrict sums,
                  std::int32_t* __restrict guards) {
  const std::int32_t saturated = std::int32_t{1} << (31 - guard_shift);
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const float* g = gradient + b * kBlock;
    const std::int32_t top_bits = max_bits(g);
    if (top_bits == 0) continue;
    const float scale = power_of_two(fraction_bits - exponents[b]);
    float top = 0.0f;
    __builtin_memcpy(&top, &top_bits, sizeof top);
    if (top_bits >= kInfinityBits || !(top * scale < 2147483648.0f)) {
      guards[b] += saturated;
      continue;
    }
    // Unsigned: a sum that overflows wraps, and its guard tells.
    auto* s = reinterpret_cast<std::uint32_t*>(sums + b * kBlock);
    for (std::int64_t i = 0; i < kBlock; ++i)
      s[i] += static_cast<std::uint32_t>(static_cast<std::int32_t>(__builtin_rintf(g[i] * scale)));
    const std::int64_t largest = static_cast<std::int64_t>(__builtin_rintf(top * scale));
    const std::int64_t unit = std::int64_t{1} << guard_shift;
    guards[b] += static_cast<std::int32_t>((largest + unit - 1) >> guard_shift);
  }
}

void dequantise(std::int64_t n, int fraction_bits, float factor, const std::int32_t* exponents,
                const std::int32_t* __restrict sums, float* __restrict gradient) {
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const float scale = power_of_two(exponents[b] - fraction_bits);
    const std::int32_t* s = sums + b * kBlock;
    float* g = gradient + b * kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) g[i] = static_cast<float>(s[i]) * scale * factor;
  }
}

void block_exponents(std::int64_t n, std::int32_t zero, const float* x, std::int32_t* out) {
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const std::int32_t bits = max_bits(x + b * kBlock);
    const std::int32_t exponent = (bits >> 23) - 127;
    const bool is_power = (bits & 0x007FFFFF) == 0;
    out[b] = bits < 0x00800000 ? zero : is_power ? exponent : exponent + 1;
  }
}

void squared_norm_chunks(std::int64_t n, std::int64_t chunk, const float* x, double* out) {
  constexpr std::int64_t kWide = 8;
  for (std::int64_t c = 0; c * chunk < n; ++c) {
    const float* from = x + c * chunk;
    const std::int64_t count = n - c * chunk < chunk ? n - c * chunk : chunk;
    WideLanes even = {}, odd = {};
    for (std::int64_t i = 0; i + 2 * kWide <= count; i += 2 * kWide) {
      HalfLanes a, b;
      __builtin_memcpy(&a, from + i, sizeof a);
      __builtin_memcpy(&b, from + i + kWide, sizeof b);
      const WideLanes wide_a = __builtin_convertvector(a, WideLanes);
      const WideLanes wide_b = __builtin_convertvector(b, WideLanes);
      even = even + wide_a * wide_a;
      odd = odd + wide_b * wide_b;
    }
    even = even + odd;
    double total = 0.0;
    for (int i = 0; i < kWide; ++i) total = total + even[i];
    out[c] = total;
  }
}

void add_i32(std::int64_t n, const std::int32_t* __restrict from, std::int32_t* __restrict to) {
  const auto* a = reinterpret_cast<const std::uint32_t*>(from);
  auto* b = reinterpret_cast<std::uint32_t*>(to);
  for (std::int64_t i = 0; i < n; ++i) b[i] += a[i];
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
