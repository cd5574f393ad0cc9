#include "common/testing/fiber_context.h"

#include "common/testing/sim_fiber.h"

#include <utility>

namespace rubato::testing {
namespace {

namespace ctx = boost::context;

struct StackRef {
  StackPool* pool;
  ctx::stack_context allocate() const { return pool->allocate(); }
  void deallocate(ctx::stack_context& stack) const { pool->deallocate(stack); }
};

}  // namespace

FiberContext::~FiberContext() { abandon(); }

void FiberContext::start(StackPool& pool, void (*body)(void*), void* argument) {
  const ctx::stack_context stack = pool.allocate();
  const void* bottom = static_cast<const char*>(stack.sp) - stack.size;
  inside_marks_.emplace(bottom, stack.size);
  const ctx::preallocated place(stack.sp, stack.size, stack);
  inside_ = ctx::fiber(std::allocator_arg, place, StackRef{&pool},
                       [this, body, argument](ctx::fiber&& from) {
                         outside_ = std::move(from);
                         inside_marks_->arrive(outside_marks_);
                         body(argument);
                         inside_marks_->leave(outside_marks_, true);
                         return std::move(outside_);
                       });
}

bool FiberContext::resume() {
  outside_marks_ = FiberMarks();  // whoever is here now
  outside_marks_.leave(*inside_marks_, false);
  inside_ = std::move(inside_).resume();
  outside_marks_.arrive(*inside_marks_);
  if (inside_) return true;
  inside_marks_->forget();
  inside_marks_.reset();
  return false;
}

void FiberContext::suspend() {
  inside_marks_->leave(outside_marks_, false);
  outside_ = std::move(outside_).resume();
  inside_marks_->arrive(outside_marks_);
}

void FiberContext::abandon() {
  if (!inside_) return;
  // Destroying it would unwind its stack.
  auto* left = new ctx::fiber(std::move(inside_));
  mark_abandoned(left);
  inside_marks_->forget();
  inside_marks_.reset();
}

}  // namespace rubato::testing
