// What the emulator finds, kept until somebody takes it. What nobody has taken when the program
// ends is printed, and the program ends with kFaultStatus: so every test on the emulator is also a
// test that there is none. With EMULATOR_FIRST in the environment, the first one ends it at once.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

namespace rubato::emulator {

enum class FaultKind : std::uint8_t {
  kOutside,        // of all allocations, or of a shared array
  kMisaligned,     // a vector that does not lie on a multiple of its size
  kRace,           // two threads of a kernel, in no order, of which one writes
  kUninitialised,  // shared memory that no thread of the block has written
  kDivergent,      // a barrier that not all threads of the block reach
  kMask,           // a warp's mask that names a lane that does not come, or leaves one out
  kStreamRace,     // two pieces of work, or one and the host, in no order, of which one writes
  kBlocked,        // a wait of the host for work that waits for another process
};
const char* name_of(FaultKind kind);

struct Fault {
  FaultKind kind;
  std::string text;  // one sentence, with the places in the source
};

constexpr int kFaultStatus = 86;

// A line of a kernel's source: that of the caller, where it is a default argument.
using Site = std::source_location;
inline bool are_same(const Site& a, const Site& b) {
  return a.line() == b.line() && a.file_name() == b.file_name();
}
std::string text_of(const Site& site);

// Each '@' in `text` stands for one of `places`, and becomes the function and line of the
// instruction that ends at that address. A kind of fault at the same places (without places: with
// the same text) counts once; after kFaultsKept no more are kept. Thread-safe.
void report(FaultKind kind, std::string text, std::vector<const void*> places = {});
constexpr std::size_t kFaultsKept = 100;

// All of them, oldest first; slow where there are any, as it asks addr2line for the places.
std::vector<Fault> take_faults();

// "cuda::map<4, cuda::Add>", of the address of a kernel.
std::string name_of_kernel(const void* kernel);

}  // namespace rubato::emulator
