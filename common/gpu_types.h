// What GPUs can do at most, as their makers' data sheets give it: for model FLOP utilisation, and
// to predict what a step takes. Pure.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace rubato {

struct GpuType {
  std::string_view label;       // of the node: nvidia.com/gpu.product
  std::string_view short_name;  // of people
  double f32_flops;             // a second, without tensor cores
  double bf16_flops;            // a second, of tensor cores, dense
  double bytes_per_second;      // of its memory
  double memory_bytes;
};

// All that are known.
std::span<const GpuType> gpu_types();
// By either name; none for other types.
std::optional<GpuType> gpu_type(std::string_view name);

}  // namespace rubato
