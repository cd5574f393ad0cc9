#include "tests/emulator/planted.h"
#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/launch.cuh"

#include <cuda_runtime.h>

namespace rubato::emulator {

namespace {

using worker::cuda::dynamic_shared;
using worker::cuda::Grid;
using worker::cuda::kAllLanes;
using worker::cuda::kWarp;

constexpr int kThreads = 64;

// ---- Races ----

template <bool kRight>
__global__ void read_without_barrier(float* memory) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = 0.0f;
  __syncthreads();
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kRight) __syncthreads();
  memory[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}

template <bool kRight>
__global__ void write_after_read(float* memory) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = memory[threadIdx.x];
  __syncthreads();
  const float other = shared[(threadIdx.x + 1) % kThreads];
  if (kRight) __syncthreads();
  shared[threadIdx.x] = other;
}

template <bool kRight>
__global__ void shuffle_is_no_barrier(float* memory) {
  __shared__ float shared[kWarp];
  const int lane = static_cast<int>(threadIdx.x);
  shared[lane] = 0.0f;
  __syncwarp();
  shared[lane] = static_cast<float>(lane);
  if (kRight)
    __syncwarp();
  else
    (void)__shfl_xor_sync(kAllLanes, 1.0f, 1);
  memory[lane] = shared[lane ^ 1];
}

template <bool kRight>
__global__ void blocks_share_a_word(float* memory) {
  memory[kRight ? blockIdx.x : 0] = 1.0f;
}

template <bool kRight>
__global__ void block_reads_its_neighbour(float* memory) {
  const std::size_t mine = blockIdx.x * kThreads + threadIdx.x;
  const std::size_t from = kRight ? mine : (mine + kThreads) % (2 * kThreads);
  memory[mine] = memory[from] + 1.0f;
}

template <bool kRight>
__global__ void threads_add_to_one_word(float* memory) {
  if (kRight && threadIdx.x != 0) return;
  memory[0] += 1.0f;
}

// ---- Addresses ----

template <bool kRight>
__global__ void one_beyond(float* memory) {
  const std::size_t at = blockIdx.x * kThreads + threadIdx.x;
  if (kRight ? at < kPlantedFloats : at <= kPlantedFloats) memory[at] = 1.0f;
}

template <bool kRight>
__global__ void one_before(float* memory) {
  memory[kThreads + threadIdx.x] = kRight ? 0.0f : *(memory + threadIdx.x - 1);
}

template <bool kRight>
__global__ void beyond_a_shared_array(float* memory) {
  __shared__ float shared[kThreads];
  __shared__ float other[kThreads];
  shared[threadIdx.x] = 1.0f;
  other[threadIdx.x] = 2.0f;
  __syncthreads();
  const int at = static_cast<int>(threadIdx.x) + (kRight ? 0 : 1);
  memory[threadIdx.x] = shared[at] + other[at];
}

template <bool kRight>
__global__ void beyond_dynamic_shared(float* memory) {
  const std::size_t at = threadIdx.x + (kRight ? 0 : 1);
  dynamic_shared[at] = 1.0f;
  memory[threadIdx.x] = dynamic_shared[at];
}

template <bool kRight>
__global__ void hosts_memory(float* memory, const float* host) {
  memory[threadIdx.x] = kRight ? 1.0f : *host;
}

template <bool kRight>
__global__ void vector_not_aligned(float* memory) {
  const float* from = memory + 4 * threadIdx.x + (kRight ? 0 : 1);
  const auto four = worker::cuda::load<4>(from);
  memory[4 * threadIdx.x] = four.v[0] + four.v[3];
}

template <bool kRight>
__global__ void unwritten_shared(float* memory) {
  __shared__ float shared[kThreads];
  if (kRight || threadIdx.x % 2 == 0) shared[threadIdx.x] = 1.0f;
  __syncthreads();
  memory[threadIdx.x] = shared[threadIdx.x];
}

// ---- Threads that do not meet ----

template <bool kRight>
__global__ void barrier_after_return(float* memory) {
  if (!kRight && threadIdx.x >= kThreads / 2) return;
  __syncthreads();
  memory[threadIdx.x] = 1.0f;
}

template <bool kRight>
__global__ void two_barriers(float* memory) {
  if (kRight || threadIdx.x < kWarp)
    __syncthreads();
  else
    __syncthreads();
  memory[threadIdx.x] = 1.0f;
}

template <bool kRight>
__global__ void mask_names_all(float* memory) {
  if (threadIdx.x < kWarp / 2) {
    const unsigned mask = kRight ? 0xffffu : kAllLanes;
    memory[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
  }
}

template <bool kRight>
__global__ void mask_without_caller(float* memory) {
  memory[threadIdx.x] = __shfl_xor_sync(kRight ? kAllLanes : 0xffffu, 1.0f, 1);
}

template <bool kRight>
__global__ void lane_outside_mask(float* memory) {
  if (threadIdx.x < kWarp / 2)
    memory[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, kRight ? 0 : kWarp / 2);
}

template <bool kRight>
__global__ void sum_of_block(const float* x, float* out) {
  constexpr int kWarps = 8;
  __shared__ float shared[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x < kWarps) shared[threadIdx.x] = 0.0f;
  __syncthreads();
  const float sum = worker::cuda::warp_sum(x[blockIdx.x * kWarps * kWarp + threadIdx.x]);
  if (static_cast<int>(threadIdx.x) % kWarp == 0) shared[warp] = sum;
  if (kRight) __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0.0f;
  for (const float one : shared) total += one;
  out[blockIdx.x] = total;
}

// ---- Traffic ----

template <int kStride>
__global__ void load_apart(float* memory) {
  memory[kPlantedFloats - kWarp + threadIdx.x] = memory[threadIdx.x * kStride];
}

template <int kStride>
__global__ void banks_apart(float* memory) {
  dynamic_shared[threadIdx.x * kStride] = 1.0f;
  __syncwarp();
  memory[threadIdx.x] = dynamic_shared[(threadIdx.x ^ 1) * kStride];
}

// ---- Starting them ----

template <unsigned kBlocks, unsigned kBlockThreads, std::size_t kSharedBytes,
          void (*kKernel)(float*)>
void start(cudaStream_t stream, float* memory) {
  Grid{stream, kBlocks, kBlockThreads, kSharedBytes}.run(kKernel, memory);
}
template <bool kRight>
void start_with_host(cudaStream_t stream, float* memory) {
  static const float host = 1.0f;
  Grid{stream, 1, kThreads}.run(hosts_memory<kRight>, memory, &host);
}

}  // namespace

// NAME, kind, error, blocks, threads of a block, bytes of dynamic shared memory
#define PLANTED(name, kind, error, ...) \
  {#name, FaultKind::kind, error, start<__VA_ARGS__, name<false>>, start<__VA_ARGS__, name<true>>}
const Planted kPlanted[] = {
    PLANTED(read_without_barrier, kRace, cudaSuccess, 1, kThreads, 0),
    PLANTED(write_after_read, kRace, cudaSuccess, 1, kThreads, 0),
    PLANTED(shuffle_is_no_barrier, kRace, cudaSuccess, 1, kWarp, 0),
    PLANTED(blocks_share_a_word, kRace, cudaSuccess, 2, 1, 0),
    PLANTED(block_reads_its_neighbour, kRace, cudaSuccess, 2, kThreads, 0),
    PLANTED(threads_add_to_one_word, kRace, cudaSuccess, 1, kThreads, 0),
    PLANTED(one_beyond, kOutside, cudaErrorIllegalAddress, 17, kThreads, 0),
    PLANTED(one_before, kOutside, cudaErrorIllegalAddress, 1, kThreads, 0),
    PLANTED(beyond_a_shared_array, kOutside, cudaErrorIllegalAddress, 1, kThreads, 0),
    PLANTED(beyond_dynamic_shared, kOutside, cudaErrorIllegalAddress, 1, kThreads,
            kThreads * sizeof(float)),
    {"hosts_memory", FaultKind::kOutside, cudaErrorIllegalAddress, start_with_host<false>,
     start_with_host<true>},
    PLANTED(vector_not_aligned, kMisaligned, cudaErrorMisalignedAddress, 1, kThreads, 0),
    PLANTED(unwritten_shared, kUninitialised, cudaSuccess, 1, kThreads, 0),
    PLANTED(barrier_after_return, kDivergent, cudaErrorLaunchFailure, 1, kThreads, 0),
    PLANTED(two_barriers, kDivergent, cudaErrorLaunchFailure, 1, kThreads, 0),
    PLANTED(mask_names_all, kMask, cudaErrorLaunchFailure, 1, kWarp, 0),
    PLANTED(mask_without_caller, kMask, cudaErrorLaunchFailure, 1, kWarp, 0),
    PLANTED(lane_outside_mask, kMask, cudaErrorLaunchFailure, 1, kWarp, 0),
};
#undef PLANTED
const std::size_t kPlantedCount = std::size(kPlanted);

void dense_load(cudaStream_t stream, float* memory) {
  Grid{stream, 1, kWarp}.run(load_apart<1>, memory);
}
void strided_load(cudaStream_t stream, float* memory) {
  Grid{stream, 1, kWarp}.run(load_apart<kWarp - 1>, memory);
}
void spread_banks(cudaStream_t stream, float* memory) {
  Grid{stream, 1, kWarp, kWarp * sizeof(float)}.run(banks_apart<1>, memory);
}
void one_bank(cudaStream_t stream, float* memory) {
  Grid{stream, 1, kWarp, kWarp * kWarp * sizeof(float)}.run(banks_apart<kWarp>, memory);
}

void sum_blocks(cudaStream_t stream, const float* x, float* out, bool right) {
  const Grid grid{stream, 8, 256};
  if (right)
    grid.run(sum_of_block<true>, x, out);
  else
    grid.run(sum_of_block<false>, x, out);
}

}  // namespace rubato::emulator
