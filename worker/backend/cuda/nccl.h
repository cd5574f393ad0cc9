// NCCL as a DeviceCollectives: members add on their GPUs, over NVLink, InfiniBand or plain sockets,
// as NCCL chooses. The library (libnccl.so.2) is looked up when it is first asked for. Private to
// worker/backend/cuda.
//
// Every communicator is one that does not block (ncclConfig_t::blocking = 0): whoever waits asks
// again, looks at its deadline, and can be freed by abort(). A communicator is given up by
// ncclCommAbort, never by ncclCommFinalize, which would wait for members that may be gone; the
// votes that follow each sum say that nobody is still adding.
#pragma once

#include "common/result.h"
#include "worker/backend/device_collectives.h"

#include <memory>

namespace rubato::worker::cuda {

// For GPU `ordinal` of this process. kNotFound: no library; kInvalid: one that is older than the
// header that this program was compiled with.
Result<std::unique_ptr<DeviceCollectives>> open_nccl(int ordinal);

}  // namespace rubato::worker::cuda
