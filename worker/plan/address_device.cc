#include "worker/plan/address_device.h"

#include "worker/backend/immediate.h"

#include <cstring>

#include <sys/mman.h>

namespace rubato::worker {

Result<Arena> AddressDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return Arena();
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return Error(Code::kExhausted, "no addresses for " + std::to_string(bytes) + " bytes");
  allocated_ += bytes;
  return Arena(*this, base, bytes);
}

void AddressDevice::release(void* base, std::size_t bytes) {
  munmap(base, bytes);
  allocated_ -= bytes;
}

std::unique_ptr<Stream> AddressDevice::make_stream() { return std::make_unique<ImmediateStream>(); }
std::unique_ptr<Event> AddressDevice::make_event() { return std::make_unique<ImmediateEvent>(); }

void AddressDevice::copy_to_host(Stream&, void* to, ConstBuffer from) {
  if (!from.is_empty()) std::memset(to, 0, from.bytes());
}

}  // namespace rubato::worker
