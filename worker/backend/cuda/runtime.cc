#include "worker/backend/cuda/runtime.h"

#include <utility>

namespace rubato::worker::cuda {

namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// "No driver" and "a driver that is too old" have one code of CUDA's.
std::string driver_problem() {
  int driver = 0;
  const std::string wanted = version_text(CUDART_VERSION);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "there is no NVIDIA driver here (libcuda.so.1): this program needs one for CUDA " +
           wanted +
           " on the node, and in a pod the container runtime that brings it in (NVIDIA's, by "
           "runtimeClassName where it is not the default)";
  return "the NVIDIA driver of this machine is too old: it is for CUDA " + version_text(driver) +
         ", this program needs one for CUDA " + wanted;
}

Code code_of(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return Code::kExhausted;
  if (error == cudaErrorNoDevice || error == cudaErrorInvalidDevice) return Code::kNotFound;
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoKernelImageForDevice)
    return Code::kInvalid;
  return Code::kInternal;
}

}  // namespace

Error to_error(cudaError_t error, const std::string& doing) {
  const std::string why =
      error == cudaErrorInsufficientDriver
          ? driver_problem()
          : std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  Error made(code_of(error), doing + ": " + why);
  if (made.code() == Code::kInternal) made.set_reason(kDeviceLost);
  return made;
}

Status to_status(cudaError_t error, const std::string& doing) {
  if (error == cudaSuccess) return ok();
  return to_error(error, doing);
}

CudaStream::~CudaStream() {
  enter();
  (void)cudaStreamSynchronize(raw_);
  if (workspace_ != nullptr) (void)cudaFree(workspace_);
  (void)cudaStreamDestroy(raw_);
}

cudaStream_t CudaStream::enter() {
  note(cudaSetDevice(ordinal_), "cudaSetDevice");
  return raw_;
}

void CudaStream::note(cudaError_t error, const char* doing) {
  if (error != cudaSuccess && !error_) error_ = to_error(error, doing);
}

void CudaStream::note(Error error) {
  if (!error_) error_ = std::move(error);
}

Status CudaStream::synchronize() {
  note(cudaStreamSynchronize(enter()), "waiting for a stream");
  if (error_) return *error_;
  return ok();
}

void* CudaStream::product_workspace(std::size_t bytes) {
  if (workspace_ == nullptr) note(cudaMalloc(&workspace_, bytes), "memory for matrix products");
  return workspace_;
}

}  // namespace rubato::worker::cuda
