// For tests of the emulator itself: a stream, and memory with values.
#pragma once

#include "tests/emulator/faults.h"
#include "tests/emulator/streams.h"

#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace rubato::emulator {

using Floats = std::vector<float>;

class Emulator : public ::testing::Test {
 protected:
  Emulator() {
    (void)cudaGetLastError();  // what the test before left
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  ~Emulator() override {
    reset();
    EXPECT_EQ(take_faults().size(), 0u);  // what a test expects it takes
  }
  static float* device(const Floats& values) {
    void* address = nullptr;
    EXPECT_EQ(cudaMalloc(&address, values.size() * sizeof(float)), cudaSuccess);
    copy(address, values.data(), values.size(), cudaMemcpyHostToDevice, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    return static_cast<float*>(address);
  }
  static cudaError_t copy(void* to, const void* from, std::size_t floats, cudaMemcpyKind kind,
                          cudaStream_t on) {
    return cudaMemcpyAsync(to, from, floats * sizeof(float), kind, on);
  }
  Floats host(const float* from, std::size_t floats) const {
    Floats out(floats);
    EXPECT_EQ(copy(out.data(), from, floats, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return out;
  }
  cudaStream_t stream = nullptr;
};

}  // namespace rubato::emulator
