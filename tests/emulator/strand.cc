#include "tests/emulator/strand.h"

#include <utility>
#include <vector>

#include <boost/context/protected_fixedsize_stack.hpp>
#include <xmmintrin.h>

namespace rubato::emulator {

namespace {

namespace ctx = boost::context;

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr unsigned kFlushSubnormals = 0x8040;  // of results and of operands, in MXCSR

std::vector<Strand*>& free_strands() {
  static auto& strands = *new std::vector<Strand*>;
  return strands;
}

}  // namespace

void (*Strand::body_)() = nullptr;

Strand* Strand::take() {
  auto& strands = free_strands();
  if (strands.empty()) return new Strand;
  Strand* strand = strands.back();
  strands.pop_back();
  return strand;
}

void Strand::give(Strand* strand) { free_strands().push_back(strand); }

Strand::Strand() {
  ctx::protected_fixedsize_stack source(kStackBytes);
  const ctx::stack_context stack = source.allocate();
  stack_bytes_ = stack.size;
  stack_ = reinterpret_cast<std::uintptr_t>(stack.sp) - stack.size;
  inside_ = ctx::fiber(std::allocator_arg, ctx::preallocated(stack.sp, stack.size, stack), source,
                       [this](ctx::fiber&& from) {
                         outside_ = std::move(from);
                         _mm_setcsr(_mm_getcsr() | kFlushSubnormals);  // of this context alone
                         for (;;) {
                           body_();
                           is_over_ = true;
                           suspend();
                         }
                         return std::move(outside_);
                       });
}

bool Strand::resume() {
  is_over_ = false;
  inside_ = std::move(inside_).resume();
  return is_over_;
}

void Strand::suspend() { outside_ = std::move(outside_).resume(); }

}  // namespace rubato::emulator
