// An NVIDIA GPU as a device: memory by cudaMalloc, which the host cannot see; streams and events of
// the runtime. Copies of pageable host memory go through the driver's own pinned pieces, so that a
// call may take as long as the copy; those of pinned memory return at once.
#pragma once

#include "worker/backend/device.h"

#include <memory>
#include <string>

namespace rubato::worker::cuda {

// `spec.kind`: "cuda" (the first GPU that the process may see) or "cuda:N".
// kInvalid: other words, no driver or one that is too old, a GPU older than compute capability 8.0,
// or a program that was built without CUDA; kNotFound: no such GPU, or no cuBLAS.
Result<std::unique_ptr<Device>> open_cuda_device(const DeviceSpec& spec);

}  // namespace rubato::worker::cuda
