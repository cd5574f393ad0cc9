// Memory of the emulated device: one range of addresses that the host cannot touch. Only while work
// runs (DeviceMemoryOpen) do its pages lie open; a host that reads or writes them at any other time
// ends the program with kFaultStatus and one sentence. Addresses are never given twice, so that who
// uses memory that was freed is found.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rubato::emulator {

struct Allocation {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool holds(std::uintptr_t address, std::size_t size) const {
    return address >= begin && size <= bytes && address - begin <= bytes - size;
  }
};

constexpr std::size_t kPoisonedBytes = std::size_t{1} << 20;
constexpr std::size_t kAllocationAlignment = 256;            // as cudaMalloc
constexpr std::size_t kDeviceBytes = std::size_t{4} << 30;   // what may be had at one time
constexpr std::size_t kAddressBytes = std::size_t{1} << 40;  // what may be had in a program's life

// Its bytes are 0xFF, as far as kPoisonedBytes, and then 0; null: there is no more. Not
// thread-safe, nor is what follows.
void* allocate_device(std::size_t bytes);
// False: `address` is none that was given, or was freed before.
bool free_device(void* address);
// The allocation that holds the address; null: none.
const Allocation* allocation_of(std::uintptr_t address);
bool is_device_address(std::uintptr_t address);
std::size_t live_allocations();
std::size_t lent_bytes();  // of all of them

class DeviceMemoryOpen {
 public:
  DeviceMemoryOpen();
  ~DeviceMemoryOpen();
  DeviceMemoryOpen(const DeviceMemoryOpen&) = delete;
  DeviceMemoryOpen& operator=(const DeviceMemoryOpen&) = delete;
};

}  // namespace rubato::emulator
