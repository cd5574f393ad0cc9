#include "worker/backend/cpu/cpu_device.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/backend/device.h"

namespace rubato::worker {

Result<std::unique_ptr<Device>> open_device(const DeviceSpec& spec) {
  if (spec.kind == "cpu") return cpu::open_cpu_device(spec);
  if (spec.kind == "cuda" || spec.kind.starts_with("cuda:")) return cuda::open_cuda_device(spec);
  return Error(Code::kInvalid, "unknown kind of device '" + spec.kind + "': cpu, cuda or cuda:N");
}

std::string device_of_slot(const std::string& kind, std::uint32_t slot) {
  return kind == "cuda" ? "cuda:" + std::to_string(slot) : kind;
}

}  // namespace rubato::worker
