// Private to common/testing: fibers, their stacks, and the scheduler that runs them.
#pragma once

#include "common/testing/fiber_context.h"
#include "common/testing/sim_executor.h"

#include <list>
#include <map>
#include <optional>
#include <vector>

#include <boost/context/protected_fixedsize_stack.hpp>

namespace rubato::testing {

struct Fiber;
using FiberPtr = std::shared_ptr<Fiber>;

// Stacks are used again, and given back only when the executor ends: what a crashed fiber left on
// its stack (a stop_callback, say) may still be referred to.
class StackPool {
 public:
  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool();
  boost::context::stack_context allocate();
  void deallocate(boost::context::stack_context& stack) { free_.push_back(stack); }

 private:
  boost::context::protected_fixedsize_stack source_{kStackBytes};
  std::vector<boost::context::stack_context> all_;
  std::vector<boost::context::stack_context> free_;
};

// What the task's owner and its fiber share.
struct TaskState {
  std::stop_source stop;
  bool done = false;
  std::vector<FiberPtr> joiners;
};

enum class FiberState { kReady, kRunning, kWaiting, kDead };

using TimerKey = std::pair<MonoTime, std::uint64_t>;

struct Fiber {
  std::uint64_t id = 0;
  std::string name;
  SimProcess::Impl* process = nullptr;
  std::function<void(std::stop_token)> body;
  std::shared_ptr<TaskState> task;
  FiberContext context;
  bool started = false;
  FiberState state = FiberState::kReady;
  bool timed_out = false;
  MonoTime deadline = MonoTime::max();  // by the process's clock
  std::optional<TimerKey> timer;
  const char* waits_for = "";
  // The C++ runtime's list of exceptions in flight is per thread; each fiber keeps its own.
  void* caught_exceptions = nullptr;
  unsigned uncaught_exceptions = 0;
};

struct SimProcess::Impl : public Clock {
  Impl(SimExecutor::Impl& executor, std::string process_name)
      : sim(executor), name(std::move(process_name)) {}
  MonoTime now() const override;
  WallTime wall() const override;

  SimExecutor::Impl& sim;
  const std::string name;
  Duration mono_skew{0};
  Duration wall_skew{0};
  mutable MonoTime shown{};
  bool crashed = false;
  bool frozen = false;
  std::vector<FiberPtr> held;  // ready, but the process is frozen
  std::vector<std::function<void()>> on_crash;
};

struct SimExecutor::Impl {
  explicit Impl(std::uint64_t seed);
  ~Impl();

  // The running fiber, or the one that stands for the test's main line.
  FiberPtr self() const { return current_ ? current_ : outside_; }
  FiberPtr spawn(SimProcess::Impl& process, std::string name,
                 std::function<void(std::stop_token)> body);
  // Suspends the caller until wake() or its deadline (false).
  bool park(SimProcess::Impl& process, MonoTime deadline, const char* what);
  void yield();
  void wake(const FiberPtr& fiber);
  void crash(SimProcess::Impl& process);
  void hold(SimProcess::Impl& process);     // after `frozen` was set
  void release(SimProcess::Impl& process);  // after it was cleared
  void retime(SimProcess::Impl& process);   // after its clock was skewed
  void set_timer(const FiberPtr& fiber);
  void cancel_timer(Fiber& fiber);

  bool step();     // runs one ready fiber; false when none is ready
  bool advance();  // fires the next timer at `horizon` at the latest; false when there is none
  std::string dump() const;

  MonoTime now{1h};  // not the epoch, so that "time zero" in code under test is no special case
  MonoTime horizon = MonoTime::max();
  Rng order;  // who runs next
  Rng user_rng;
  std::uint64_t steps = 0;
  std::uint64_t steps_here = 0;  // since time moved
  std::uint64_t digest = 0;

 private:
  friend class SimExecutor;
  struct Timer {
    FiberPtr fiber;
    std::function<void()> call;
  };
  void run(const FiberPtr& fiber);
  void make_ready(const FiberPtr& fiber);
  void bury(Fiber& fiber);

  StackPool stacks_;
  FiberPtr current_;
  FiberPtr outside_;
  bool in_callback_ = false;
  std::uint64_t next_id_ = 0;
  std::uint64_t next_timer_ = 0;
  std::map<std::uint64_t, FiberPtr> fibers_;  // alive, by id
  std::vector<FiberPtr> ready_;
  std::map<TimerKey, Timer> timers_;
  std::list<std::unique_ptr<SimProcess>> processes_;
  std::vector<SimProcess::Impl*> process_impls_;
};

}  // namespace rubato::testing
