// In the place of nccl.cc where NCCL's header is not there to compile it with.
#include "worker/backend/cuda/nccl.h"

namespace rubato::worker::cuda {

Result<std::unique_ptr<DeviceCollectives>> open_nccl(int) {
  return Error(Code::kNotFound, "this program was built without NCCL");
}

}  // namespace rubato::worker::cuda
