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

// The largest |gradient * scale| of a block; kBroken when it is not finite or does not fit 31 bits.
constexpr float kBroken = -1.0f;
RUBATO_INLINE float scaled_top(const float* g, float scale) {
  const std::int32_t bits = max_bits(g);
  float top = 0.0f;
  __builtin_memcpy(&top, &bits, sizeof top);
  top *= scale;
  return bits < kInfinityBits && top < 2147483648.0f ? top : kBroken;
}

// Guards and sums are unsigned here: a sum that overflows wraps, and its guard tells.
RUBATO_INLINE std::uint32_t guard_of(float largest, int guard_shift) {
  const auto q = static_cast<std::uint32_t>(largest);
  const std::uint32_t unit = std::uint32_t{1} << guard_shift;
  return (q + unit - 1) >> guard_shift;
}

// A 32-bit mix (the constants are those of Wellons' hash-prospector, "lowbias32").
RUBATO_INLINE UnsignedLanes mix(UnsignedLanes x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Output `number` of SplitMix64 from the state `key`.
RUBATO_INLINE std::uint64_t mix_wide(std::uint64_t key, std::int64_t number) {
  std::uint64_t x = key + static_cast<std::uint64_t>(number + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The key of one block, from that of the step and the block's number.
RUBATO_INLINE std::uint32_t block_key(std::uint64_t key, std::int64_t block) {
  return static_cast<std::uint32_t>(mix_wide(key, block) >> 32);
}

// Four elements at a time, widened: the compiler keeps all sums of a chunk in registers.
constexpr std::int64_t kQuarter = 4;
using QuarterInts = std::int32_t __attribute__((vector_size(16)));
using QuarterLongs = std::int64_t __attribute__((vector_size(32)));
using QuarterSums = std::uint64_t __attribute__((vector_size(32)));

// 16 values x, rounded down or up in size as r says (kernels.h, Dither). |x| < 2^31.
RUBATO_INLINE UnsignedLanes round_by(const Lanes& x, const UnsignedLanes& r) {
  const IntLanes negative = bits_of(x) >> 31;  // all ones, or zero
  const Lanes size = from_bits(bits_of(x) & 0x7FFFFFFF);
  const IntLanes whole = __builtin_convertvector(size, IntLanes);
  const Lanes part = size - __builtin_convertvector(whole, Lanes);  // exact
  const IntLanes threshold = __builtin_convertvector(part * 2147483648.0f, IntLanes);
  const auto drawn = (IntLanes)((r ^ (UnsignedLanes)negative) >> 1);
  const IntLanes up = drawn < threshold;  // -1: up
  return (UnsignedLanes)(((whole - up) ^ negative) - negative);
}

}  // namespace

void quantise_add(std::int64_t n, int fraction_bits, int guard_shift, const std::int32_t* exponents,
                  const float* __restrict gradient, std::int32_t* __restrict sums,
                  std::int32_t* __restrict guards) {
  auto* guard = reinterpret_cast<std::uint32_t*>(guards);
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const float* g = gradient + b * kBlock;
    const float scale = power_of_two(fraction_bits - exponents[b]);
    const float top = scaled_top(g, scale);
    if (top == 0.0f) continue;
    if (top == kBroken) {
      guard[b] += std::uint32_t{1} << (31 - guard_shift);
      continue;
    }
    auto* s = reinterpret_cast<std::uint32_t*>(sums + b * kBlock);
    for (std::int64_t i = 0; i < kBlock; ++i)
      s[i] += static_cast<std::uint32_t>(static_cast<std::int32_t>(__builtin_rintf(g[i] * scale)));
    guard[b] += guard_of(__builtin_rintf(top), guard_shift);
  }
}

void dither_add(std::int64_t n, const DitherOp& op, const std::int32_t* exponents,
                const float* __restrict gradient, std::int32_t* __restrict sums,
                std::int32_t* __restrict guards) {
  constexpr std::uint32_t kStride = 0x9e3779b9u;  // odd: elements of a block get 256 counters
  UnsignedLanes lane = {};
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<std::uint32_t>(i) * kStride;
  auto* guard = reinterpret_cast<std::uint32_t*>(guards);
  for (std::int64_t b = 0; b < n / kBlock; ++b) {
    const float* g = gradient + b * kBlock;
    const float scale = power_of_two(op.fraction_bits - exponents[b]);
    const float top = scaled_top(g, scale);
    if (top == 0.0f) continue;
    if (top == kBroken) {
      guard[b] += std::uint32_t{1} << (31 - op.guard_shift);
      continue;
    }
    std::int32_t* s = sums + b * kBlock;
    UnsignedLanes counter = lane + block_key(op.key, b);
    for (std::int64_t i = 0; i < kBlock; i += kLanes) {
      UnsignedLanes sum;
      __builtin_memcpy(&sum, s + i, sizeof sum);
      sum += round_by(load(g + i) * scale, mix(counter) + op.offset);
      __builtin_memcpy(s + i, &sum, sizeof sum);
      counter += static_cast<std::uint32_t>(kLanes) * kStride;
    }
    guard[b] += guard_of(__builtin_ceilf(top), op.guard_shift);
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

// Row r of a chunk is its elements 16 r to 16 r + 15. `sum` adds a lane over the rows, `sums` adds
// every sum on the way: rows * sum - sums is the lane's sum of r * x, without a product an element.
void weighted_sums(std::int64_t n, std::int64_t chunk, const std::int32_t* x, std::int64_t* out) {
  constexpr int kQuarters = kLanes / kQuarter;
  for (std::int64_t c = 0; c * chunk < n; ++c) {
    const std::int32_t* from = x + c * chunk;
    const std::int64_t count = n - c * chunk < chunk ? n - c * chunk : chunk;
    const std::int64_t rows = count / kLanes;
    QuarterSums sum[kQuarters] = {}, sums[kQuarters] = {};
    for (std::int64_t r = 0; r < rows; ++r)
      for (int q = 0; q < kQuarters; ++q) {
        QuarterInts part;
        __builtin_memcpy(&part, from + r * kLanes + q * kQuarter, sizeof part);
        sum[q] += (QuarterSums) __builtin_convertvector(part, QuarterLongs);
        sums[q] += sum[q];
      }
    const auto all_rows = static_cast<std::uint64_t>(rows);
    std::uint64_t total = 0;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t i = rows * kLanes + lane;  // in a row that is not whole
      const auto rest = static_cast<std::uint64_t>(std::int64_t{i < count ? from[i] : 0});
      const std::uint64_t of_rows = sum[lane / kQuarter][lane % kQuarter];
      const std::uint64_t by_row =
          all_rows * (of_rows + rest) - sums[lane / kQuarter][lane % kQuarter];
      total += (mix_wide(0, 2 * lane) | 1) * (of_rows + rest);
      total += (mix_wide(0, 2 * lane + 1) & ~1ull) * by_row;
    }
    out[c] = static_cast<std::int64_t>(total);
  }
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
