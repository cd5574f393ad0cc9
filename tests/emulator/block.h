// How a kernel runs: the blocks of its grid one after another, each thread of a block as a fiber on
// the calling host thread, switched only where threads meet (a barrier, an instruction of a warp).
// What happens in between is judged by order and not by luck: shadow.h knows who touched which
// word, and says where two threads might have done so the other way round.
//
// The order of blocks, of warps and of the lanes of a warp is drawn from the seed (random.h), anew
// at each barrier. Kernels run with subnormals flushed, as ours are compiled for (nvcc.options).
//
// A kernel is stopped, and all later calls fail as a GPU's do, by: an address outside of all
// allocations, a vector that is not aligned, a barrier that not all threads of the block reach, a
// mask that names a lane that does not come. Stricter than the hardware: a thread that has returned
// does not come.
#pragma once

#include "tests/emulator/faults.h"
#include "tests/emulator/shadow.h"
#include "tests/emulator/strand.h"

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace rubato::emulator {

constexpr int kWarpLanes = 32;
constexpr unsigned kThreadsMax = 1024;         // of a block
constexpr std::size_t kSharedMax = 232448;     // bytes of a block that may be asked for
constexpr std::size_t kSharedUnasked = 49152;  // that a kernel has without asking

// Where the running thread stands: what kernels know as threadIdx, blockIdx, blockDim and gridDim.
struct Here {
  uint3 thread, block;
  dim3 threads, blocks;
};
extern Here here;

// A kernel with its arguments, which threads may read and not write.
struct Kernel {
  const void* code = nullptr;
  void (*run)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  std::size_t argument_bytes = 0;
  void (*drop)(const void* arguments) = nullptr;
};

// As cudaLaunchKernelEx (runtime.cc); owns the arguments from then on.
cudaError_t launch(const cudaLaunchConfig_t& config, const Kernel& kernel);

// Runs a whole grid now, while device memory is open; `work` is its name in shadow.h. An error:
// it was stopped, and a fault says why.
cudaError_t run_grid(const cudaLaunchConfig_t& config, const Kernel& kernel, std::uint32_t work);

// ---- For the running thread ----

// __syncthreads.
void meet_block(Site site);
// __syncwarp. Orders memory if the mask names all lanes of the warp.
void meet_warp(unsigned mask, Site site);

// An instruction of a warp: once all lanes of `mask` have come, each with that mask, all of them
// are given what each of them gave.
struct WarpCall {
  unsigned mask = 0;
  std::uint64_t value = 0;
  int source = 0;  // the lane whose value the caller wants
  Site site;
};
void gather(const WarpCall& call, std::uint64_t (&all)[kWarpLanes]);
int lane_in_warp();

// ---- For access.cc ----

// What the running thread may touch beside device and shared memory, and how its accesses are
// stamped.
struct Running {
  Moment now;
  const Strand* strand = nullptr;
  std::uintptr_t arguments = 0;
  std::size_t argument_bytes = 0;
  std::uintptr_t shared = 0;  // its first byte
  std::size_t dynamic_shared_bytes = 0;
};
// Null: no kernel runs on this host thread.
extern constinit thread_local Running* running;

[[noreturn]] void stop_kernel(cudaError_t error);

}  // namespace rubato::emulator
