// A stack on which threads of kernels run, one after another: Boost.Context. Strands are kept for
// the life of the program. One that was left in the middle (a kernel was stopped) is never used
// again.
#pragma once

#include <cstddef>
#include <cstdint>

#include <boost/context/fiber.hpp>

namespace rubato::emulator {

class Strand {
 public:
  // What each turn of a strand does.
  static void set_body(void (*body)()) { body_ = body; }
  // One that stands at the beginning of a turn.
  static Strand* take();
  static void give(Strand* strand);

  Strand();
  // From outside: runs until it suspends (false) or its turn is over (true).
  bool resume();
  // From inside.
  void suspend();
  bool has_on_stack(std::uintptr_t address) const { return address - stack_ < stack_bytes_; }

 private:
  static void (*body_)();
  boost::context::fiber inside_, outside_;
  bool is_over_ = false;
  std::uintptr_t stack_ = 0;
  std::size_t stack_bytes_ = 0;
};

}  // namespace rubato::emulator
