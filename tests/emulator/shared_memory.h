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

// Shared memory of one host thread: the address of its first byte. Not cheap.
std::uintptr_t shared_begin();
std::size_t shared_bytes();
// The array that holds an address so many bytes after the beginning, and it begins there, too;
// null: none does. What a kernel asked for when it was started is an array of `dynamic_bytes` here.
const SharedArray* shared_array_of(std::size_t offset, std::size_t dynamic_bytes);

}  // namespace rubato::emulator
