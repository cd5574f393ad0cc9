// What g++ -fsanitize=thread calls before each access to memory, in the place of ThreadSanitizer's
// own library: every access of a kernel is seen here, and its source knows nothing of it. What lies
// on a thread's own stack stands for registers and is not looked at, but for indices beyond an
// array of known size (-fsanitize=bounds).
#include "tests/emulator/block.h"
#include "tests/emulator/device_memory.h"
#include "tests/emulator/shadow.h"
#include "tests/emulator/shared_memory.h"
#include "tests/emulator/streams.h"
#include "tests/emulator/traffic.h"

#include <algorithm>
#include <vector>

namespace rubato::emulator {

namespace {

// One instruction of one thread.
struct Access {
  std::uintptr_t address;
  std::size_t bytes;
  bool write;
  const void* code;
};

const void* program() {
  static const char kAnchor = 0;  // near enough to all code of the program
  return &kAnchor;
}
std::uint32_t code_number(const void* code) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(code) -
                                    reinterpret_cast<std::uintptr_t>(program()));
}
const void* code_of(std::uint32_t number) {
  const auto distance = static_cast<std::int32_t>(number);
  return static_cast<const char*>(program()) + distance;
}

bool is_within(std::uintptr_t address, std::uintptr_t begin, std::size_t bytes) {
  return address - begin < bytes;
}

std::string text_of_thread() {
  return "thread " + std::to_string(running->now.stamp.thread) + " of block " +
         std::to_string(here.block.x);
}
std::string verb(const Access& access) { return access.write ? " writes " : " reads "; }

void stop(const Access& access, FaultKind kind, cudaError_t error, const std::string& what) {
  report(
      kind,
      text_of_thread() + verb(access) + std::to_string(access.bytes) + " bytes " + what + " in @",
      {access.code});
  stop_kernel(error);
}

void report_clash(const Access& access, const Clash& clash) {
  if (clash.kind == Clash::kWork) {
    std::vector<const void*> places;
    std::string text = text_of_work(running->now.work, places) + " is not ordered after ";
    text += text_of_work(clash.work, places);
    places.push_back(access.code);
    report(FaultKind::kStreamRace, text + ":" + verb(access) + "in @", places);
  } else if (clash.kind == Clash::kThread) {
    const void* other = code_of(clash.other.code);
    report(FaultKind::kRace,
           text_of_thread() + verb(access) + "in @, and thread " +
               std::to_string(clash.other.thread) + " touches the same word in @, in no order",
           {access.code, other});
  }
}

Moment moment_of(const Access& access) {
  Moment now = running->now;
  now.stamp.code = code_number(access.code);
  return now;
}

void count_if_wanted(const Access& access, const Moment& now, bool is_shared) {
  if (is_counting())
    count(
        {now.stamp.code, now.stamp.thread, access.address, access.bytes, access.write, is_shared});
}

void touch_device(const Access& access) {
  static Allocation last;
  if (!last.holds(access.address, access.bytes)) {
    const Allocation* allocation = allocation_of(access.address);
    if (allocation == nullptr || !allocation->holds(access.address, access.bytes))
      stop(access, FaultKind::kOutside, cudaErrorIllegalAddress, "that no allocation holds");
    last = *allocation;
  }
  const Moment now = moment_of(access);
  count_if_wanted(access, now, false);
  const std::uintptr_t end = access.address + access.bytes;
  for (std::uintptr_t at = access.address; at < end; at += kWordBytes)
    if (const Clash clash = shadow().touch(at, access.write, now); clash.kind != Clash::kNone)
      report_clash(access, clash);
}

void touch_shared(const Access& access) {
  static std::vector<Threads>& words = *new std::vector<Threads>(shared_bytes() / kWordBytes + 1);
  const std::size_t offset = access.address - running->shared;
  const SharedArray* array = shared_array_of(offset, running->dynamic_shared_bytes);
  if (array == nullptr || offset + access.bytes > array->begin + array->bytes)
    stop(access, FaultKind::kOutside, cudaErrorIllegalAddress, "that no shared array holds");
  Moment now = moment_of(access);
  count_if_wanted(access, now, true);
  now.kernel_phase = now.block_phase;  // of another block's shared memory nothing is left
  for (std::size_t at = offset; at < offset + access.bytes; at += kWordBytes) {
    Threads& word = words[at / kWordBytes];
    if (!access.write && !word.is_written(now))
      report(
          FaultKind::kUninitialised,
          text_of_thread() + " reads shared memory that no thread of the block has written, in @",
          {access.code});
    if (const Clash clash = word.record(now, access.write); clash.kind != Clash::kNone)
      report_clash(access, clash);
  }
}

void touch(const Access& access) {
  if (running == nullptr) return;  // host code beside the kernels
  if (running->strand->has_on_stack(access.address)) return;
  if (is_within(access.address, reinterpret_cast<std::uintptr_t>(&here), sizeof here)) return;
  if (!access.write && is_within(access.address, running->arguments, running->argument_bytes))
    return;
  if (access.address % std::min<std::size_t>(access.bytes, 16) != 0)
    stop(access, FaultKind::kMisaligned, cudaErrorMisalignedAddress,
         "at an address that is no multiple of that");
  if (is_device_address(access.address))
    touch_device(access);
  else if (is_within(access.address, running->shared, shared_bytes()))
    touch_shared(access);
  else
    stop(access, FaultKind::kOutside, cudaErrorIllegalAddress, "of the host's memory");
}

void note(const void* address, std::size_t bytes, bool write, const void* code) {
  touch({reinterpret_cast<std::uintptr_t>(address), bytes, write, code});
}

}  // namespace
}  // namespace rubato::emulator

#define ACCESS_OF(bytes)                                                        \
  void __tsan_read##bytes(void* address) {                                      \
    rubato::emulator::note(address, bytes, false, __builtin_return_address(0)); \
  }                                                                             \
  void __tsan_write##bytes(void* address) {                                     \
    rubato::emulator::note(address, bytes, true, __builtin_return_address(0));  \
  }                                                                             \
  void __tsan_unaligned_read##bytes(void* address) {                            \
    rubato::emulator::note(address, bytes, false, __builtin_return_address(0)); \
  }                                                                             \
  void __tsan_unaligned_write##bytes(void* address) {                           \
    rubato::emulator::note(address, bytes, true, __builtin_return_address(0));  \
  }

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): GCC names them.
extern "C" {
ACCESS_OF(1)
ACCESS_OF(2)
ACCESS_OF(4)
ACCESS_OF(8)
ACCESS_OF(16)
// Objects of another size: byte by byte, as nothing is known of how the GPU would split them.
void __tsan_read_range(void* address, unsigned long bytes) {
  for (unsigned long i = 0; i < bytes; ++i)
    rubato::emulator::note(static_cast<char*>(address) + i, 1, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  for (unsigned long i = 0; i < bytes; ++i)
    rubato::emulator::note(static_cast<char*>(address) + i, 1, true, __builtin_return_address(0));
}
void __tsan_init() {}

// Where an index stands, and the beginning of what GCC tells of it.
struct OutOfBounds {
  const char* file;
  std::uint32_t line, column;
};
void __ubsan_handle_out_of_bounds(const OutOfBounds* where, std::uintptr_t index) {
  const std::string file = where->file;
  rubato::emulator::report(rubato::emulator::FaultKind::kOutside,
                           "index " + std::to_string(static_cast<std::intptr_t>(index)) +
                               " of an array is beyond it in " + file.substr(file.rfind('/') + 1) +
                               ":" + std::to_string(where->line));
  if (rubato::emulator::running != nullptr) rubato::emulator::stop_kernel(cudaErrorIllegalAddress);
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
