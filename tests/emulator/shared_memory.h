// Shared memory of the emulated device: the thread-local variables of this program (cuda_runtime.h
// says why). Where each begins and ends is read from the program's own table of symbols, so that an
// index beyond one array is found although another one lies behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rubato::emulator {

struct SharedArray {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string name;  // "rubato::…::sort_rows(…)::others"
};

// Whether it is shared memory of the calling host thread, in an array or between two.
bool is_shared_address(std::uintptr_t address);
// From the first byte of shared memory on.
std::size_t shared_offset(std::uintptr_t address);
std::size_t shared_bytes();
// The array that holds the address; null: none does. What a kernel asked for when it was started is
// an array of `dynamic_bytes` here.
const SharedArray* shared_array_of(std::uintptr_t address, std::size_t dynamic_bytes);

}  // namespace rubato::emulator
