// In the place of worker/backend/open_device.cc where the CPU backend's library (oneDNN) is
// missing: what scripts/gpu-check builds.
#include "worker/backend/cuda/cuda_device.h"

namespace rubato::worker {

Result<std::unique_ptr<Device>> open_device(const DeviceSpec& spec) {
  return cuda::open_cuda_device(spec);
}

}  // namespace rubato::worker
