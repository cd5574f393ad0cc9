// Kernels with a fault planted in them, each with its twin that is right: what shows that the
// emulator finds what it says.
#pragma once

#include "tests/emulator/faults.h"

#include <cstddef>

#include <cuda_runtime_api.h>

namespace rubato::emulator {

struct Planted {
  const char* kernel;
  FaultKind kind;
  cudaError_t error;  // how it ends; cudaSuccess: it is not stopped
  // Enqueues it on `memory`, kPlantedFloats of the device.
  void (*wrong)(cudaStream_t stream, float* memory);
  void (*right)(cudaStream_t stream, float* memory);
};
constexpr std::size_t kPlantedFloats = 1024;
extern const Planted kPlanted[];
extern const std::size_t kPlantedCount;

// out[block] = a sum over a block by shuffles and shared memory, 8 blocks of 256 threads; wrong:
// the last fold takes what is there, without a barrier, so that its value depends on the order.
void sum_blocks(cudaStream_t stream, const float* x, float* out, bool right);

// One warp that loads 32 words of global memory, next to each other or 31 words apart, and stores
// them next to each other.
void dense_load(cudaStream_t stream, float* memory);
void strided_load(cudaStream_t stream, float* memory);
// One warp that writes and reads 32 words of shared memory, in all banks or in one.
void spread_banks(cudaStream_t stream, float* memory);
void one_bank(cudaStream_t stream, float* memory);

}  // namespace rubato::emulator
