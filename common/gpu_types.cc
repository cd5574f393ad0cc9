#include "common/gpu_types.h"

#include <algorithm>
#include <array>

namespace rubato {

namespace {
constexpr std::array kTypes{
    GpuType{"NVIDIA-A100-SXM4-40GB", "A100-40GB", 19.5e12, 312e12, 1.555e12, 40e9},
    GpuType{"NVIDIA-A100-SXM4-80GB", "A100", 19.5e12, 312e12, 2.039e12, 80e9},
    GpuType{"NVIDIA-H100-80GB-HBM3", "H100", 67e12, 989e12, 3.35e12, 80e9},
    GpuType{"NVIDIA-H200", "H200", 67e12, 989e12, 4.8e12, 141e9},
    GpuType{"NVIDIA-L40S", "L40S", 91.6e12, 362e12, 0.864e12, 48e9},
};
}  // namespace

std::span<const GpuType> gpu_types() { return kTypes; }

std::optional<GpuType> gpu_type(std::string_view name) {
  const auto* found = std::ranges::find_if(
      kTypes, [&](const GpuType& type) { return type.label == name || type.short_name == name; });
  if (found == kTypes.end()) return std::nullopt;
  return *found;
}

}  // namespace rubato
