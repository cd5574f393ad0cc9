#include "worker/checkpoint/widen.h"

#include "common/check.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace rubato::worker {

namespace {

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
std::uint32_t half_to_single(std::uint32_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1Fu;
  std::uint32_t fraction = half & 0x3FFu;
  if (exponent == 0x1F) return sign | 0x7F800000u | fraction << 13;
  if (exponent != 0) return sign | (exponent + 127 - 15) << 23 | fraction << 13;
  if (fraction == 0) return sign;
  // Subnormal: fraction * 2^-24, normal as f32.
  const int shift = std::countl_zero(fraction) - 21;
  fraction = fraction << shift & 0x3FFu;
  return sign | static_cast<std::uint32_t>(127 - 14 - shift) << 23 | fraction << 13;
}

constexpr std::uint32_t kInfinity = 0x7F800000u;          // as f32
constexpr std::uint32_t kHalfInfiniteFrom = 0x477FF000u;  // 65520: half way from the largest, 65504
constexpr std::uint32_t kShortInfiniteFrom = 0x7F7F8000u;

// The upper part of `bits`, to the nearest; ties to even.
std::uint32_t rounded(std::uint32_t bits, int dropped) {
  const std::uint32_t below_half = (1u << (dropped - 1)) - 1;
  return (bits + below_half + (bits >> dropped & 1u)) >> dropped;
}

std::uint32_t single_to_half(std::uint32_t bits) {
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t size = bits & 0x7FFFFFFFu;
  if (size > kInfinity) {  // NaN keeps its upper bits, and stays one
    const std::uint32_t fraction = size >> 13 & 0x3FFu;
    return sign | 0x7C00u | (fraction == 0 ? 0x200u : fraction);
  }
  if (size >= kHalfInfiniteFrom) return sign | 0x7C00u;
  constexpr std::uint32_t kLeastNormal = 0x38800000u;  // 2^-14
  if (size >= kLeastNormal) return sign | rounded(size - ((127u - 15u) << 23), 13);
  const float units = std::ldexp(std::bit_cast<float>(size), 24);  // of the smallest subnormal
  return sign | static_cast<std::uint32_t>(std::nearbyint(units));
}

std::uint32_t single_to_short(std::uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) <= kInfinity) return rounded(bits, 16);
  const std::uint32_t upper = bits >> 16;
  return (upper & 0x7Fu) == 0 ? upper | 0x40u : upper;
}

}  // namespace

std::size_t width_of_floats(std::string_view dtype) {
  if (dtype == "F32") return 4;
  return dtype == "BF16" || dtype == "F16" ? 2 : 0;
}

void widen(std::string_view dtype, std::span<const std::byte> from, std::span<float> to) {
  CHECK_EQ(from.size(), 2 * to.size());
  const bool is_half = dtype == "F16";
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from.data() + 2 * i, sizeof bits);
    to[i] = std::bit_cast<float>(is_half ? half_to_single(bits)
                                         : static_cast<std::uint32_t>(bits) << 16);
  }
}

void narrow(std::string_view dtype, std::span<const float> from, std::span<std::byte> to) {
  CHECK_EQ(to.size(), 2 * from.size());
  const bool is_half = dtype == "F16";
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const auto out =
        static_cast<std::uint16_t>(is_half ? single_to_half(bits) : single_to_short(bits));
    std::memcpy(to.data() + 2 * i, &out, sizeof out);
  }
}

float infinite_from(std::string_view dtype) {
  if (dtype == "F32") return std::numeric_limits<float>::infinity();
  return std::bit_cast<float>(dtype == "F16" ? kHalfInfiniteFrom : kShortInfiniteFrom);
}

}  // namespace rubato::worker
