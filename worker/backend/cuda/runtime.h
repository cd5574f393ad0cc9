// CUDA's runtime as the files of this folder use it: errors as values, and our stream. Private to
// worker/backend/cuda.
#pragma once

#include "worker/backend/device.h"

#include <optional>
#include <string>

#include <cuda_runtime_api.h>

namespace rubato::worker::cuda {

// kExhausted: no memory; kNotFound: no such GPU; kInvalid: no driver, or one that is too old for
// this program; kInternal: anything else, and always with the name that CUDA gives it. An error of
// enqueued work ("an illegal memory access", a lost device) stays with the process: no later call
// succeeds. It is kInternal, whose reason() is kDeviceLost.
Error to_error(cudaError_t error, const std::string& doing);
Status to_status(cudaError_t error, const std::string& doing);

// Everything enqueued on a stream that could not be enqueued, or that failed there, is remembered:
// the first error is told by every synchronize() from then on.
class CudaStream : public Stream {
 public:
  CudaStream(int ordinal, cudaStream_t raw) : ordinal_(ordinal), raw_(raw) {}
  ~CudaStream() override;
  Status synchronize() override;

  int ordinal() const { return ordinal_; }
  // Makes the GPU that of the calling thread, which every call of the runtime looks at.
  cudaStream_t enter();
  void note(cudaError_t error, const char* doing);
  void note(Error error);
  // After kernels were launched: what the launch said.
  void note_launch(const char* what) { note(cudaGetLastError(), what); }
  const std::optional<Error>& error() const { return error_; }

  // Scratch memory of this stream's matrix products, made when it is first asked for; null: there
  // was none, which is noted.
  void* product_workspace(std::size_t bytes);

 private:
  int ordinal_;
  cudaStream_t raw_;
  void* workspace_ = nullptr;
  std::optional<Error> error_;
};

}  // namespace rubato::worker::cuda
