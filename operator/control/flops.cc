#include "operator/control/flops.h"

#include <array>

namespace rubato::control {

namespace {
struct Peak {
  std::string_view gpu_type;
  double f32;   // without tensor cores
  double bf16;  // tensor cores, dense
};
constexpr std::array kPeaks{
    Peak{"NVIDIA-A100-SXM4-40GB", 19.5e12, 312e12}, Peak{"NVIDIA-A100-SXM4-80GB", 19.5e12, 312e12},
    Peak{"NVIDIA-H100-80GB-HBM3", 67e12, 989e12},   Peak{"NVIDIA-H200", 67e12, 989e12},
    Peak{"NVIDIA-L40S", 91.6e12, 362e12},
};
}  // namespace

std::optional<double> peak_flops(std::string_view gpu_type, api::Precision precision) {
  for (const Peak& peak : kPeaks) {
    if (peak.gpu_type == gpu_type) return precision == api::Precision::kBf16 ? peak.bf16 : peak.f32;
  }
  return std::nullopt;
}

}  // namespace rubato::control
