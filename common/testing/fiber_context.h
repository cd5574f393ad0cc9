// FiberContext: a stack of its own and the way to it and back (Boost.Context). Private to
// common/testing. Its .cc is compiled without sanitizers: a function whose entry is seen on one
// stack and whose end on another would confuse them. They are told of each switch instead.
#pragma once

#include "common/testing/sanitizer_fibers.h"

#include <optional>

#include <boost/context/fiber.hpp>
#include <boost/context/stack_context.hpp>

namespace rubato::testing {

class StackPool;

class FiberContext {
 public:
  FiberContext() = default;
  ~FiberContext();  // over, abandoned, or never started
  FiberContext(const FiberContext&) = delete;
  FiberContext& operator=(const FiberContext&) = delete;

  // Runs `body(argument)` on a stack of the pool when it is resumed first. No exception may leave
  // it.
  void start(StackPool& pool, void (*body)(void*), void* argument);
  // From outside: runs the fiber until it suspends (true) or its body ends (false).
  bool resume();
  // From inside: back to who resumed it.
  void suspend();
  // From outside: it never runs again. Nothing on its stack is destroyed, as in a power cut.
  void abandon();

 private:
  boost::context::fiber inside_;   // the fiber, while it does not run
  boost::context::fiber outside_;  // who resumed it, while it runs
  std::optional<FiberMarks> inside_marks_;
  FiberMarks outside_marks_;
};

}  // namespace rubato::testing
