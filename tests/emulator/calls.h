// The calls that a program makes of the emulated libraries, in their order, and how a test lets one
// fail. cudaGetErrorName, cudaGetErrorString and cublasLtGetVersion cannot fail and are not among
// them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace rubato::emulator {

// The names of all calls since the last start_calls().
void start_calls();
std::vector<std::string> calls();

// The `nth` call from now on (from 0) fails and does nothing: with kFailure, cudaMalloc with
// cudaErrorMemoryAllocation, a call of cuBLASLt with CUBLAS_STATUS_INTERNAL_ERROR.
constexpr cudaError_t kFailure = cudaErrorUnknown;
void fail_call(std::size_t nth);

// For the libraries: notes a call; true: it is to fail.
bool fails(const char* name);

}  // namespace rubato::emulator
