// How our kernels are started: by a call of the runtime, not by <<<>>>, which only nvcc reads. So
// another compiler takes the same files (tests/emulator).
#pragma once

#include "worker/backend/cuda/ops.h"

#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

// Enqueues `blocks` blocks of `threads` threads each. Errors: CudaStream::note_launch.
struct Grid {
  RawStream stream;
  dim3 blocks;
  unsigned threads;
  std::size_t shared_bytes = 0;  // of dynamic_shared, a block

  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), Arguments&&... arguments) const {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    (void)cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  }
};

// The shared memory of this block that its launch asked for.
extern __shared__ float dynamic_shared[];

}  // namespace rubato::worker::cuda
