// In the place of this folder where there is no CUDA to build with.
#include "worker/backend/cuda/cuda_device.h"

namespace rubato::worker::cuda {

Result<std::unique_ptr<Device>> open_cuda_device(const DeviceSpec& spec) {
  return Error(Code::kInvalid, "device '" + spec.kind +
                                   "': this program was built without CUDA; the image "
                                   "of deploy/worker-cuda.Dockerfile has it");
}

}  // namespace rubato::worker::cuda
