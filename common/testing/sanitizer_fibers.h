// What the sanitizers must be told about stacks that are switched by hand and about memory that a
// simulated power cut leaves behind. Every function is empty without a sanitizer. The build says
// which one there is (RUBATO_ASAN, RUBATO_TSAN), because the file that switches is itself not
// instrumented.
#pragma once

#include <cstddef>

#if defined(RUBATO_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#elif defined(RUBATO_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace rubato::testing {

// One stack as the sanitizers see it. leave() and arrive() come in pairs around each switch: the
// side that goes calls leave() with the one it goes to, the side that runs then calls arrive().
class FiberMarks {
 public:
#if defined(RUBATO_ASAN)
  FiberMarks() = default;  // the stack of the thread: known once a fiber was switched to from it
  FiberMarks(const void* bottom, std::size_t bytes) : bottom_(bottom), bytes_(bytes) {}
  // `for_good`: this stack is not run again, its fake frames are freed.
  void leave(const FiberMarks& to, bool for_good) {
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_, to.bottom_, to.bytes_);
  }
  void arrive(FiberMarks& from) {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_, &bottom, &bytes);
    from.bottom_ = bottom;
    from.bytes_ = bytes;
  }
  void forget() {}

 private:
  void* fake_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t bytes_ = 0;
#elif defined(RUBATO_TSAN)
  FiberMarks() : fiber_(__tsan_get_current_fiber()) {}
  FiberMarks(const void*, std::size_t) : fiber_(__tsan_create_fiber(0)) {}
  void leave(const FiberMarks& to, bool) { __tsan_switch_to_fiber(to.fiber_, 0); }
  void arrive(FiberMarks&) {}
  // Of a stack that is not run again, from outside it.
  void forget() { __tsan_destroy_fiber(fiber_); }

 private:
  void* fiber_;
#else
  FiberMarks() = default;
  FiberMarks(const void*, std::size_t) {}
  void leave(const FiberMarks&, bool) {}
  void arrive(FiberMarks&) {}
  void forget() {}
#endif
};

// A stack is used again: what its last fiber left poisoned (frames that never returned) is clean.
inline void mark_stack_fresh([[maybe_unused]] const void* bottom,
                             [[maybe_unused]] std::size_t bytes) {
#if defined(RUBATO_ASAN)
  __asan_unpoison_memory_region(bottom, bytes);
#endif
}

// A stack that stays as it is for good: what it refers to is a dead process's memory, not a leak.
inline void mark_stack_abandoned([[maybe_unused]] const void* bottom,
                                 [[maybe_unused]] std::size_t bytes) {
#if defined(RUBATO_ASAN)
  __lsan_register_root_region(bottom, bytes);
#endif
}

// An object that nobody owns any more, on purpose, with all that hangs on it.
template <typename T>
void mark_abandoned([[maybe_unused]] T* object) {
#if defined(RUBATO_ASAN)
  __lsan_ignore_object(object);
#endif
}

// True where stacks that were abandoned must not be unmapped: they are scanned at the end.
#if defined(RUBATO_ASAN)
inline constexpr bool kKeepsAbandonedStacks = true;
#else
inline constexpr bool kKeepsAbandonedStacks = false;
#endif

}  // namespace rubato::testing
