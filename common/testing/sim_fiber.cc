#include "common/testing/sim_fiber.h"

#include <algorithm>

#include <cxxabi.h>
#include <fmt/format.h>

namespace rubato::testing {
namespace {

namespace ctx = boost::context;

// A deadline this far away is none; beyond, adding a skew could overflow.
constexpr Duration kForever = std::chrono::hours(24 * 365 * 100);

// The layout that the Itanium C++ ABI gives __cxa_eh_globals.
struct ExceptionGlobals {
  void* caught;
  unsigned uncaught;
};
ExceptionGlobals& exception_globals() {
  return *reinterpret_cast<ExceptionGlobals*>(abi::__cxa_get_globals());
}

const char* name_of(FiberState state) {
  switch (state) {
    case FiberState::kReady:
      return "ready";
    case FiberState::kRunning:
      return "running";
    case FiberState::kWaiting:
      return "waits for";
    case FiberState::kDead:
      return "dead";
  }
  return "?";
}

const void* bottom_of(const ctx::stack_context& stack) {
  return static_cast<const char*>(stack.sp) - stack.size;
}

// What runs on a fiber's stack.
void run_body(void* argument) {
  Fiber& fiber = *static_cast<Fiber*>(argument);
  fiber.body(fiber.task->stop.get_token());
  fiber.body = nullptr;
  fiber.state = FiberState::kDead;
}

// Stays allocated for good.
template <typename T>
void leave_behind(T&& value) {
  mark_abandoned(new std::decay_t<T>(std::forward<T>(value)));
}

}  // namespace

StackPool::~StackPool() {
  const auto is_free = [&](const ctx::stack_context& stack) {
    return std::any_of(free_.begin(), free_.end(),
                       [&](const ctx::stack_context& other) { return other.sp == stack.sp; });
  };
  for (auto& stack : all_) {
    mark_stack_fresh(bottom_of(stack), stack.size);
    if (kKeepsAbandonedStacks && !is_free(stack)) {
      mark_stack_abandoned(bottom_of(stack), stack.size);
    } else {
      source_.deallocate(stack);
    }
  }
}

ctx::stack_context StackPool::allocate() {
  if (!free_.empty()) {
    const ctx::stack_context stack = free_.back();
    free_.pop_back();
    mark_stack_fresh(bottom_of(stack), stack.size);
    return stack;
  }
  all_.push_back(source_.allocate());
  return all_.back();
}

MonoTime SimProcess::Impl::now() const {
  shown = std::max(shown, sim.now + mono_skew);
  return shown;
}

WallTime SimProcess::Impl::wall() const {
  constexpr WallTime kStart{std::chrono::seconds(1'767'225'600)};  // 2026-01-01T00:00:00Z
  return kStart + (sim.now.time_since_epoch() - Duration(1h)) + wall_skew;
}

SimExecutor::Impl::Impl(std::uint64_t seed)
    : order(Rng(seed).fork(1)), user_rng(Rng(seed).fork(2)), outside_(std::make_shared<Fiber>()) {
  outside_->name = "(outside)";
  outside_->state = FiberState::kRunning;
}

SimExecutor::Impl::~Impl() {
  CHECK(!current_);
  for (SimProcess::Impl* process : process_impls_) crash(*process);
}

FiberPtr SimExecutor::Impl::spawn(SimProcess::Impl& process, std::string name,
                                  std::function<void(std::stop_token)> body) {
  const auto fiber = std::make_shared<Fiber>();
  fiber->id = ++next_id_;
  fiber->name = std::move(name);
  fiber->process = &process;
  fiber->task = std::make_shared<TaskState>();
  if (process.crashed) {
    fiber->state = FiberState::kDead;
    fiber->task->done = true;
    return fiber;
  }
  CHECK_LT(fibers_.size(), kFibersMax);
  fiber->body = std::move(body);
  fibers_.emplace(fiber->id, fiber);
  make_ready(fiber);
  return fiber;
}

void SimExecutor::Impl::make_ready(const FiberPtr& fiber) {
  fiber->state = FiberState::kReady;
  if (fiber == outside_) return;
  (fiber->process->frozen ? fiber->process->held : ready_).push_back(fiber);
}

void SimExecutor::Impl::wake(const FiberPtr& fiber) {
  if (fiber->state != FiberState::kWaiting) return;
  cancel_timer(*fiber);
  make_ready(fiber);
}

void SimExecutor::Impl::set_timer(const FiberPtr& fiber) {
  cancel_timer(*fiber);
  const Duration left = fiber->deadline.time_since_epoch() - now.time_since_epoch();
  if (left > kForever) return;
  const MonoTime time = std::max(now, fiber->deadline - fiber->process->mono_skew);
  fiber->timer = TimerKey(time, ++next_timer_);
  timers_.emplace(*fiber->timer, Timer{fiber, nullptr});
}

void SimExecutor::Impl::cancel_timer(Fiber& fiber) {
  if (!fiber.timer) return;
  timers_.erase(*fiber.timer);
  fiber.timer.reset();
}

bool SimExecutor::Impl::park(SimProcess::Impl& process, MonoTime deadline, const char* what) {
  CHECK(!in_callback_);  // a fault plan must not wait
  const FiberPtr fiber = self();
  if (fiber == outside_) fiber->process = &process;
  fiber->deadline = deadline;
  fiber->timed_out = false;
  fiber->waits_for = what;
  fiber->state = FiberState::kWaiting;
  set_timer(fiber);
  if (fiber != outside_) {
    fiber->context.suspend();
    return !fiber->timed_out;
  }
  const MonoTime before = std::exchange(horizon, MonoTime::max());
  while (outside_->state == FiberState::kWaiting) {
    if (!step() && !advance()) check_failed(__FILE__, __LINE__, "nobody can run\n" + dump());
  }
  horizon = before;
  outside_->state = FiberState::kRunning;
  return !fiber->timed_out;
}

void SimExecutor::Impl::yield() {
  CHECK(!in_callback_);
  if (!current_) {
    step();
    return;
  }
  make_ready(current_);
  current_->context.suspend();
}

void SimExecutor::Impl::run(const FiberPtr& fiber) {
  ++steps;
  if (++steps_here > kSpinLimit) {
    check_failed(__FILE__, __LINE__, "time does not move: somebody never waits\n" + dump());
  }
  digest =
      mix64(digest ^ mix64(static_cast<std::uint64_t>(now.time_since_epoch().count())) ^ fiber->id);
  if (!fiber->started) {
    fiber->started = true;
    fiber->context.start(stacks_, &run_body, fiber.get());
  }
  ExceptionGlobals& globals = exception_globals();
  const ExceptionGlobals ours = globals;
  globals = {fiber->caught_exceptions, fiber->uncaught_exceptions};
  const FiberPtr before = std::exchange(current_, fiber);
  fiber->state = FiberState::kRunning;
  fiber->context.resume();
  current_ = before;
  fiber->caught_exceptions = globals.caught;
  fiber->uncaught_exceptions = globals.uncaught;
  globals = ours;
  if (fiber->state == FiberState::kDead) bury(*fiber);
}

// The fiber ended or its process crashed.
void SimExecutor::Impl::bury(Fiber& fiber) {
  fiber.state = FiberState::kDead;
  cancel_timer(fiber);
  fiber.context.abandon();
  fiber.task->done = true;
  const auto joiners = std::move(fiber.task->joiners);
  fiber.task->joiners.clear();
  for (const FiberPtr& joiner : joiners) wake(joiner);
  fibers_.erase(fiber.id);
}

void SimExecutor::Impl::crash(SimProcess::Impl& process) {
  if (process.crashed) return;
  process.crashed = true;
  std::vector<FiberPtr> ours;
  for (const auto& [id, fiber] : fibers_) {
    if (fiber->process == &process && fiber != current_) ours.push_back(fiber);
  }
  std::erase_if(ready_, [&](const FiberPtr& fiber) { return fiber->process == &process; });
  process.held.clear();
  for (const FiberPtr& fiber : ours) {
    // What the body captured is lost with the process: it is not destroyed.
    leave_behind(std::move(fiber->body));
    bury(*fiber);
  }
  for (const auto& fn : std::exchange(process.on_crash, {})) fn();
  if (current_ && current_->process == &process) {
    leave_behind(current_);  // its frames stay, and they know it
    current_->state = FiberState::kDead;
    current_->context.suspend();
    check_failed(__FILE__, __LINE__, "a crashed fiber ran");
  }
}

void SimExecutor::Impl::hold(SimProcess::Impl& process) {
  for (const FiberPtr& fiber : ready_) {
    if (fiber->process == &process) process.held.push_back(fiber);
  }
  std::erase_if(ready_, [&](const FiberPtr& fiber) { return fiber->process == &process; });
  if (current_ && current_->process == &process) yield();  // until thaw()
}

void SimExecutor::Impl::release(SimProcess::Impl& process) {
  for (const FiberPtr& fiber : std::exchange(process.held, {})) ready_.push_back(fiber);
}

void SimExecutor::Impl::retime(SimProcess::Impl& process) {
  for (const auto& [id, fiber] : fibers_) {
    if (fiber->process == &process && fiber->state == FiberState::kWaiting) set_timer(fiber);
  }
}

bool SimExecutor::Impl::step() {
  if (ready_.empty()) return false;
  std::swap(ready_[order.below(ready_.size())], ready_.back());
  const FiberPtr fiber = std::move(ready_.back());
  ready_.pop_back();
  run(fiber);
  return true;
}

bool SimExecutor::Impl::advance() {
  if (timers_.empty() || timers_.begin()->first.first > horizon) return false;
  const auto first = timers_.begin();
  if (first->first.first > now) {
    now = first->first.first;
    steps_here = 0;
  }
  const Timer timer = std::move(first->second);
  timers_.erase(first);
  if (timer.fiber) {
    timer.fiber->timer.reset();
    timer.fiber->timed_out = true;
    make_ready(timer.fiber);
    return true;
  }
  const bool nested = std::exchange(in_callback_, true);
  timer.call();
  in_callback_ = nested;
  return true;
}

std::string SimExecutor::Impl::dump() const {
  std::string out = fmt::format("t={:.6f}s, {} steps, {} fibers, {} timers\n",
                                std::chrono::duration<double>(now.time_since_epoch()).count(),
                                steps, fibers_.size(), timers_.size());
  const auto line = [&](const Fiber& fiber) {
    out += fmt::format("  {}/{}#{}: {}", fiber.process ? fiber.process->name : "-", fiber.name,
                       fiber.id, name_of(fiber.state));
    if (fiber.state == FiberState::kWaiting) {
      out += fmt::format(" {}", fiber.waits_for);
      out += fiber.timer ? " until " +
                               std::to_string(std::chrono::duration<double>(
                                                  fiber.timer->first.time_since_epoch())
                                                  .count()) +
                               "s"
                         : " without a deadline";
    }
    if (fiber.process && fiber.process->frozen) out += " (frozen)";
    out += '\n';
  };
  for (const auto& [id, fiber] : fibers_) line(*fiber);
  if (outside_->state == FiberState::kWaiting) line(*outside_);
  return out;
}

}  // namespace rubato::testing
