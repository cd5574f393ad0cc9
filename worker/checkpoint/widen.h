// Short floating-point numbers of safetensors files as f32, exactly.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace rubato::worker {

// Bytes of an element of "F32", "BF16" or "F16"; 0 for any other name.
std::size_t width_of_floats(std::string_view dtype);
// BF16 or F16 (little-endian) to f32; NaN stays NaN with its upper bits.
void widen(std::string_view dtype, std::span<const std::byte> from, std::span<float> to);

}  // namespace rubato::worker
