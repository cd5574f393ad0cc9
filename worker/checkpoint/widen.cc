#include "worker/checkpoint/widen.h"

#include "common/check.h"

#include <bit>
#include <cstdint>
#include <cstring>

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

}  // namespace rubato::worker
