// The runtime's calls (cuda_runtime_api.h), over block.h, streams.h and device_memory.h. Each may
// be made to fail.
#include "tests/emulator/block.h"
#include "tests/emulator/calls.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/faults.h"
#include "tests/emulator/shadow.h"
#include "tests/emulator/streams.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

namespace rubato::emulator {

namespace {

constexpr std::uint8_t kPoison = 0xA5;
constexpr unsigned kGridMax = 65535;  // of y and z

struct Calls {
  std::vector<std::string> made;
  std::optional<std::size_t> until_failure;
  std::map<const void*, std::size_t> shared_allowed;  // by kernel
};
Calls& all_calls() {
  static Calls& made = *new Calls;
  return made;
}

// Of the calling thread.
constinit thread_local cudaError_t last_error = cudaSuccess;

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// One call: notes it, and does its work unless it is to fail, or work has failed before.
template <class Do>
cudaError_t call(const char* name, Do work) {
  const std::lock_guard guard(lock());
  if (fails(name))
    return told(std::strcmp(name, "cudaMalloc") == 0 ? cudaErrorMemoryAllocation : kFailure);
  if (sticky_error() != cudaSuccess) return told(sticky_error());
  return told(work());
}

cudaError_t found(bool is_there) { return is_there ? cudaSuccess : cudaErrorInvalidResourceHandle; }

cudaError_t set_bytes(cudaStream_t stream, void* to, int byte, std::size_t bytes) {
  return enqueue(stream, {"a memset"}, [=](std::uint32_t id) {
    if (!sweep(id, to, bytes, true)) return cudaErrorIllegalAddress;
    const DeviceMemoryOpen open;
    std::memset(to, byte, bytes);
    return cudaSuccess;
  });
}

cudaError_t copy_bytes(cudaStream_t stream, void* to, const void* from, std::size_t bytes,
                       cudaMemcpyKind kind) {
  const bool from_device = kind != cudaMemcpyHostToDevice;
  const bool to_device = kind != cudaMemcpyDeviceToHost;
  if (from_device != is_device_address(reinterpret_cast<std::uintptr_t>(from)) ||
      to_device != is_device_address(reinterpret_cast<std::uintptr_t>(to)))
    return cudaErrorInvalidValue;
  if (!to_device) std::memset(to, kPoison, bytes);
  return enqueue(stream, {"a copy"}, [=](std::uint32_t id) {
    if (!sweep(id, from, bytes, false) || !sweep(id, to, bytes, true))
      return cudaErrorIllegalAddress;
    const DeviceMemoryOpen open;
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t check_shape(const cudaLaunchConfig_t& config, const void* code) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kThreadsMax || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > kGridMax || grid.z > kGridMax)
    return cudaErrorInvalidConfiguration;
  const auto& allowed = all_calls().shared_allowed;
  const auto asked = allowed.find(code);
  const std::size_t most = asked == allowed.end() ? kSharedUnasked : asked->second;
  return config.dynamicSmemBytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

void start_calls() {
  const std::lock_guard guard(lock());
  all_calls().made.clear();
}

std::vector<std::string> calls() {
  const std::lock_guard guard(lock());
  return all_calls().made;
}

void fail_call(std::size_t nth) {
  const std::lock_guard guard(lock());
  all_calls().until_failure = nth;
}

bool fails(const char* name) {
  Calls& all = all_calls();
  all.made.emplace_back(name);
  if (!all.until_failure || (*all.until_failure)-- != 0) return false;
  all.until_failure.reset();
  return true;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const Kernel& kernel) {
  const std::shared_ptr<const void> arguments(kernel.arguments, kernel.drop);
  return call("cudaLaunchKernel", [&]() -> cudaError_t {
    if (const cudaError_t error = check_shape(config, kernel.code); error != cudaSuccess)
      return error;
    // Places are what comes before an address.
    const void* code = static_cast<const char*>(kernel.code) + 1;
    return enqueue(config.stream, {"@", code}, [config, kernel, arguments](std::uint32_t id) {
      const DeviceMemoryOpen open;
      return run_grid(config, kernel, id);
    });
  });
}

}  // namespace rubato::emulator

using namespace rubato::emulator;

cudaError_t cudaDriverGetVersion(int* version) {
  return call("cudaDriverGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&] {
    *count = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
  return call("cudaGetDeviceProperties", [&] {
    if (device != 0) return cudaErrorInvalidDevice;
    *about = {"Emulated GPU", 9, 0, 1, kSharedMax};
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&] { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [] { return wait_for_all(); });
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorMisalignedAddress:
      return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotReady:
    case cudaErrorUnknown:
      break;
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "emulated";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = call("cudaGetLastError", [] { return last_error; });
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&] {
    *free = kDeviceBytes - lent_bytes();
    *total = kDeviceBytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  return call("cudaMalloc", [&] {
    *address = allocate_device(bytes);
    return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* address) {
  return call("cudaFree", [&] {
    if (const cudaError_t error = wait_for_all(); error != cudaSuccess) return error;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const Allocation* gone = allocation_of(at);
    if (gone == nullptr || gone->begin != at) return cudaErrorInvalidValue;
    shadow().forget(gone->begin, gone->bytes);
    free_device(address);
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return call("cudaMemset", [&] {
    if (const cudaError_t error = set_bytes(nullptr, to, byte, bytes); error != cudaSuccess)
      return error;
    return wait_for(cudaStream_t{nullptr});
  });
}

cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&] { return set_bytes(stream, to, byte, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&] { return copy_bytes(stream, to, from, bytes, kind); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreateWithFlags", [&] {
    *stream = make_stream();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&] {
    return is_stream(stream) ? wait_for(stream) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&] { return found(drop_stream(stream)); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&] {
    if (!is_stream(stream) || !is_event(event)) return cudaErrorInvalidResourceHandle;
    hold(stream, event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreateWithFlags", [&] {
    *event = make_event();
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&] {
    if (!is_stream(stream) || !is_event(event)) return cudaErrorInvalidResourceHandle;
    record(event, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&] {
    if (!is_event(event)) return cudaErrorInvalidResourceHandle;
    if (has_passed(event)) return sticky_error();
    run_one_before(event);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize",
              [&] { return is_event(event) ? wait_for(event) : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&] { return found(drop_event(event)); });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  return call("cudaFuncSetAttribute", [&] {
    if (value < 0 || static_cast<std::size_t>(value) > kSharedMax) return cudaErrorInvalidValue;
    all_calls().shared_allowed[kernel] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}
