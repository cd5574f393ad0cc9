#include "tests/emulator/device_memory.h"

#include "common/check.h"
#include "tests/emulator/faults.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

#include <sys/mman.h>
#include <unistd.h>

namespace rubato::emulator {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGap = kAllocationAlignment;  // of nothing, behind each allocation

struct Memory {
  std::uintptr_t base = 0;
  std::size_t used = 0;  // of addresses
  std::size_t lent = 0;  // of bytes
  int open = 0;
  std::map<std::uintptr_t, Allocation> allocations;  // by where they begin
};

// Where the range lies, for the signal's handler.
std::uintptr_t range_begin = 0;

void end_for_host_access(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (at - range_begin < kAddressBytes) {
    constexpr char kText[] = "emulator: the host touched device memory\n";
    (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
    _exit(kFaultStatus);
  }
  (void)signal(SIGSEGV, SIG_DFL);  // not ours: it comes again
}

Memory& memory() {
  static Memory& all = []() -> Memory& {
    void* base =
        mmap(nullptr, kAddressBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    auto& made = *new Memory;
    made.base = range_begin = reinterpret_cast<std::uintptr_t>(base);
    struct sigaction action = {};
    action.sa_sigaction = end_for_host_access;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGSEGV, &action, nullptr) == 0);
    return made;
  }();
  return all;
}

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

void protect(const Memory& all, int how) {
  if (all.used == 0) return;
  CHECK(mprotect(reinterpret_cast<void*>(all.base), rounded(all.used, kPage), how) == 0);
}

}  // namespace

void* allocate_device(std::size_t bytes) {
  Memory& all = memory();
  const std::size_t taken = rounded(bytes, kAllocationAlignment) + kGap;
  if (bytes > kDeviceBytes - all.lent || taken > kAddressBytes - all.used) return nullptr;
  const std::uintptr_t begin = all.base + all.used;
  all.used += taken;
  all.lent += bytes;
  all.allocations[begin] = {begin, bytes};
  const DeviceMemoryOpen open;
  auto* address = reinterpret_cast<void*>(begin);
  std::memset(address, 0xFF, std::min(bytes, kPoisonedBytes));
  return address;
}

std::size_t lent_bytes() { return memory().lent; }

bool free_device(void* address) {
  Memory& all = memory();
  const auto found = all.allocations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == all.allocations.end()) return false;
  const Allocation gone = found->second;
  all.allocations.erase(found);
  all.lent -= gone.bytes;
  const std::uintptr_t first = rounded(gone.begin, kPage);
  const std::uintptr_t end = (gone.begin + gone.bytes) / kPage * kPage;
  if (first < end) CHECK(madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED) == 0);
  return true;
}

const Allocation* allocation_of(std::uintptr_t address) {
  const auto& all = memory().allocations;
  auto next = all.upper_bound(address);
  if (next == all.begin()) return nullptr;
  const Allocation& before = (--next)->second;
  return before.holds(address, 0) ? &before : nullptr;
}

bool is_device_address(std::uintptr_t address) { return address - memory().base < kAddressBytes; }

std::size_t live_allocations() { return memory().allocations.size(); }

DeviceMemoryOpen::DeviceMemoryOpen() {
  if (memory().open++ == 0) protect(memory(), PROT_READ | PROT_WRITE);
}
DeviceMemoryOpen::~DeviceMemoryOpen() {
  if (--memory().open == 0) protect(memory(), PROT_NONE);
}

}  // namespace rubato::emulator
