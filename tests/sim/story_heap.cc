// The heap of the programs that tell stories. A story is a process of one thread which ends soon,
// and a sixth of its time went into malloc and free: small blocks come from pages of one size each
// and go back to a list of that size. Larger ones are malloc's. Not under sanitizers, which look
// after the heap themselves.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <sys/mman.h>

namespace {

constexpr std::size_t kUnit = 16;
constexpr std::size_t kLargest = 1024;  // bytes
constexpr std::size_t kSizes = kLargest / kUnit + 1;
constexpr std::size_t kPage = std::size_t{1} << 16;
constexpr std::size_t kPages = std::size_t{1} << 20;  // 64 GiB of addresses, taken as they are used

struct FreeBlock {
  FreeBlock* next;
};

std::byte* region = nullptr;
std::size_t pages_used = 0;
std::array<std::uint8_t, kPages> size_of_page;  // in units
std::array<FreeBlock*, kSizes> free_blocks;
std::array<std::byte*, kSizes> fresh;  // of the size's newest page, up to its end
std::array<std::byte*, kSizes> fresh_end;

void take_page(std::size_t units) {
  if (region == nullptr) {
    void* const all = ::mmap(nullptr, kPage * kPages, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) std::abort();
    region = static_cast<std::byte*>(all);
  }
  if (pages_used == kPages) std::abort();
  size_of_page[pages_used] = static_cast<std::uint8_t>(units);
  fresh[units] = region + pages_used * kPage;
  fresh_end[units] = fresh[units] + kPage / (units * kUnit) * (units * kUnit);
  ++pages_used;
}

void* allocate(std::size_t bytes) {
  if (bytes > kLargest) return std::malloc(bytes);
  const std::size_t units = bytes == 0 ? 1 : (bytes + kUnit - 1) / kUnit;
  if (FreeBlock* const block = free_blocks[units]) {
    free_blocks[units] = block->next;
    return block;
  }
  if (fresh[units] == fresh_end[units]) take_page(units);
  void* const block = fresh[units];
  fresh[units] += units * kUnit;
  return block;
}

void release(void* pointer) noexcept {
  const auto at =
      reinterpret_cast<std::uintptr_t>(pointer) - reinterpret_cast<std::uintptr_t>(region);
  if (region == nullptr || at >= pages_used * kPage) return std::free(pointer);
  auto* const block = static_cast<FreeBlock*>(pointer);
  FreeBlock*& first = free_blocks[size_of_page[at / kPage]];
  block->next = first;
  first = block;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const block = allocate(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* pointer) noexcept { release(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { release(pointer); }
