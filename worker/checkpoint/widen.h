// Short floating-point numbers of safetensors files: as f32, exactly, and rounded from it.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace rubato::worker {

// Bytes of an element of "F32", "BF16" or "F16"; 0 for any other name.
std::size_t width_of_floats(std::string_view dtype);
// BF16 or F16 (little-endian) to f32; NaN stays NaN with its upper bits.
void widen(std::string_view dtype, std::span<const std::byte> from, std::span<float> to);
// f32 to BF16 or F16, to the nearest, ties to even; what is beyond their largest becomes infinite.
// What widen() gave becomes what it was.
void narrow(std::string_view dtype, std::span<const float> from, std::span<std::byte> to);
// The least number that "F32", "BF16" or "F16" has as infinity.
float infinite_from(std::string_view dtype);

}  // namespace rubato::worker
