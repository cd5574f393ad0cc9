#include "worker/backend/cpu/cpu_device.h"

#include "worker/backend/cpu/gemm.h"
#include "worker/backend/cpu/memory_limit.h"
#include "worker/backend/immediate.h"

#include <cstring>

#include <sys/mman.h>

namespace rubato::worker {

namespace cpu {

namespace {

// Raised when our own kernels change bits; oneDNN and the instruction set speak for themselves.
constexpr int kKernelsVersion = 1;

}  // namespace

std::string CpuDevice::fingerprint() const {
  return std::string("cpu/") + name_of(isa_) + "/" + gemm_version() + "/kernels-" +
         std::to_string(kKernelsVersion);
}

Result<MemoryLimit> CpuDevice::memory() const {
  PosixFileSystem files;
  return memory_limit(files, "");
}

Result<Arena> CpuDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Arena();
  // Fresh pages are zero and page-aligned; large pages save page-walks in the big products.
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED)
    return Error(Code::kExhausted, "no memory for " + std::to_string(bytes) + " bytes");
  madvise(base, bytes, MADV_HUGEPAGE);
  return Arena(*this, base, bytes);
}

void CpuDevice::release(void* base, std::size_t bytes) { munmap(base, bytes); }

std::unique_ptr<Stream> CpuDevice::make_stream() { return std::make_unique<ImmediateStream>(); }
std::unique_ptr<Event> CpuDevice::make_event() { return std::make_unique<ImmediateEvent>(); }

void CpuDevice::copy_to_device(Stream&, Buffer to, const void* from) {
  if (!to.is_empty()) std::memcpy(to.address(), from, to.bytes());
}
void CpuDevice::copy_to_host(Stream&, void* to, ConstBuffer from) {
  if (!from.is_empty()) std::memcpy(to, from.address(), from.bytes());
}
void CpuDevice::copy(Stream&, Buffer to, ConstBuffer from) {
  CHECK_EQ(to.bytes(), from.bytes());
  if (!to.is_empty()) std::memmove(to.address(), from.address(), to.bytes());
}
void CpuDevice::memset(Stream&, Buffer to, std::uint8_t byte) {
  if (!to.is_empty()) std::memset(to.address(), byte, to.bytes());
}

Result<std::unique_ptr<Device>> open_cpu_device(const DeviceSpec& spec) {
  TRY(const Isa isa, parse_isa(spec.isa, spec.precision));
  TRY_OK(pin_isa(isa));
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(isa));
}

}  // namespace cpu

}  // namespace rubato::worker
