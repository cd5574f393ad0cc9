// What a GPU's memory would have to do for a kernel: lanes of a warp that make the same access make
// it as one request. Counted only between start_counting() and counted(), as it takes ten times as
// long.
//
//   Global memory moves in sectors of 32 bytes. `sectors`: those that the requests touch; `ideal`:
//   as many as would hold the words that they ask for, next to each other. Shared memory has 32
//   banks of one word. `wavefronts`: turns that a request takes, where each bank gives one word a
//   turn, and requests of 8 or 16 bytes a lane are served half or a quarter of a warp at a time;
//   `ideal`: as many as its words would take without a conflict.
//
// Lanes are matched by the place of the access in the program and by how often they have been
// there. Caches are not imitated: what is read twice counts twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace rubato::emulator {

struct Traffic {
  std::uint64_t loaded = 0, stored = 0;  // bytes of global memory, each once a request
  std::uint64_t sectors = 0, ideal_sectors = 0;
  std::uint64_t wavefronts = 0, ideal_wavefronts = 0;
};

void start_counting();
// Bytes of global memory since then: what a kernel has read, and what it has written, each word
// once, of all kernels together. What the memory itself moves where caches hold the rest.
std::uint64_t touched_bytes();
// By kernel, all of its launches together. Counting ends.
std::map<std::string, Traffic> counted();

// ---- For access.cc and block.cc ----

struct Request {
  std::uint32_t code = 0;
  std::uint16_t thread = 0;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  bool write = false;
  bool is_shared = false;
};
bool is_counting();
void count(const Request& request);
// All threads of a block of that kernel have ended.
void end_counted_block(const void* kernel);

}  // namespace rubato::emulator
