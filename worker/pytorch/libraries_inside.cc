// What third parties' static libraries lack to lie in a shared library (CMakeLists.txt).
#include "common/check.h"

#include <cstdio>

#include <fmt/format-inl.h>
#include <google/protobuf/arena.h>
#include <sys/random.h>

// fmt. Debian has libfmt.so alone: what our objects look for in it, from its headers.
FMT_BEGIN_NAMESPACE
namespace detail {

template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);
template FMT_API void vformat_to(buffer<char>&, string_view,
                                 basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);

}  // namespace detail
FMT_END_NAMESPACE

// protobuf. Debian's libprotobuf.a was compiled for programs; two files of it can be in nothing
// else. arena.o has thread-local memory. Nothing here makes an Arena, so these are never called;
// whatever makes one some day brings arena.o by its constructor, and the link fails.
#define NO_ARENAS rubato::check_failed(__FILE__, __LINE__, "there are no arenas here")

namespace google::protobuf {

void* Arena::AllocateAlignedWithHook(size_t, const std::type_info*) { NO_ARENAS; }
void* Arena::AllocateAlignedWithHookForArray(size_t, const std::type_info*) { NO_ARENAS; }
std::pair<void*, internal::SerialArena::CleanupNode*> Arena::AllocateAlignedWithCleanup(
    size_t, const std::type_info*) {
  NO_ARENAS;
}

namespace internal {

__thread ThreadSafeArena::ThreadCache ThreadSafeArena::thread_cache_ = {0, ~0ULL, nullptr};
ThreadSafeArena::~ThreadSafeArena() { NO_ARENAS; }
void ThreadSafeArena::AddCleanup(void*, void (*)(void*)) { NO_ARENAS; }
uint64_t ThreadSafeArena::SpaceAllocated() const { NO_ARENAS; }
uint64_t ThreadSafeArena::SpaceUsed() const { NO_ARENAS; }

}  // namespace internal

}  // namespace google::protobuf

extern "C" {

// common.o wants the `stderr` of a program: by --wrap all of the library has this one.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's
extern FILE* __real_stderr;
FILE* __wrap_stderr = nullptr;
// Before any other constructor of the library: it may print.
__attribute__((constructor(101))) static void set_stderr() { __wrap_stderr = __real_stderr; }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

// libstdc++. std::random_device wants that of glibc 2.36.
std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  CHECK_EQ(getentropy(&number, sizeof number), 0);
  return number;
}

}  // extern "C"
