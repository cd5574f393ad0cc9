#include "common/testing/sim_executor.h"

#include "common/log.h"
#include "common/testing/sim_fiber.h"

#include <algorithm>

namespace rubato::testing {
namespace {

class SimCondition : public Condition {
 public:
  SimCondition(SimProcess::Impl& process, SimExecutor::Impl& sim) : process_(process), sim_(sim) {}

  bool wait_until(std::unique_lock<std::mutex>& lock, MonoTime deadline) override {
    CHECK(lock.owns_lock());
    const FiberPtr fiber = sim_.self();
    waiters_.push_back(fiber);
    lock.unlock();
    const bool notified = sim_.park(process_, deadline, "a condition");
    std::erase(waiters_, fiber);
    // On one thread this can only fail when a fiber waits with a mutex in its hand.
    CHECK(lock.try_lock());
    return notified;
  }

  void notify_all() override {
    // A process that is gone notifies nobody; its executor may be gone, too.
    for (const FiberPtr& fiber : std::exchange(waiters_, {})) {
      if (fiber->state == FiberState::kWaiting) sim_.wake(fiber);
    }
  }

 private:
  SimProcess::Impl& process_;
  SimExecutor::Impl& sim_;
  std::vector<FiberPtr> waiters_;
};

class SimTask : public Task::Impl {
 public:
  SimTask(SimProcess::Impl& process, SimExecutor::Impl& sim, FiberPtr fiber)
      : process_(process), sim_(sim), fiber_(std::move(fiber)), state_(fiber_->task) {}
  void request_stop() override {
    // A dead fiber's stop_callback may still be registered, on a stack that is gone.
    if (!state_->done) state_->stop.request_stop();
  }
  void join() override {
    CHECK(state_->done || sim_.self() != fiber_);
    while (!state_->done) {
      state_->joiners.push_back(sim_.self());
      sim_.park(process_, MonoTime::max(), "a task to end");
    }
  }
  bool done() const override { return state_->done; }

 private:
  SimProcess::Impl& process_;
  SimExecutor::Impl& sim_;
  const FiberPtr fiber_;
  const std::shared_ptr<TaskState> state_;
};

}  // namespace

SimProcess::SimProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SimProcess::~SimProcess() = default;

Clock& SimProcess::clock() { return *impl_; }

std::unique_ptr<Condition> SimProcess::make_condition() {
  return std::make_unique<SimCondition>(*impl_, impl_->sim);
}

Result<Task> SimProcess::try_spawn(std::string name, std::function<void(std::stop_token)> body) {
  FiberPtr fiber = impl_->sim.spawn(*impl_, std::move(name), std::move(body));
  return Task(std::make_unique<SimTask>(*impl_, impl_->sim, std::move(fiber)));
}

bool SimProcess::sleep_until(MonoTime time, std::stop_token stop) {
  SimExecutor::Impl& sim = impl_->sim;
  const FiberPtr fiber = sim.self();
  const std::stop_callback on_stop(stop, [&] { sim.wake(fiber); });
  if (impl_->now() >= time && !stop.stop_requested()) sim.yield();
  while (impl_->now() < time && !stop.stop_requested()) sim.park(*impl_, time, "a time");
  return !stop.stop_requested();
}

const std::string& SimProcess::name() const { return impl_->name; }
bool SimProcess::crashed() const { return impl_->crashed; }
bool SimProcess::frozen() const { return impl_->frozen; }
void SimProcess::crash() { impl_->sim.crash(*impl_); }

void SimProcess::freeze() {
  impl_->frozen = true;
  impl_->sim.hold(*impl_);
}

void SimProcess::thaw() {
  impl_->frozen = false;
  impl_->sim.release(*impl_);
}

void SimProcess::skew(Duration monotonic, Duration wall) {
  impl_->now();  // what was shown stays the least that will be shown
  impl_->mono_skew += monotonic;
  impl_->wall_skew += wall;
  impl_->sim.retime(*impl_);
}

void SimProcess::on_crash(std::function<void()> fn) {
  if (impl_->crashed) return fn();
  impl_->on_crash.push_back(std::move(fn));
}

SimExecutor::SimExecutor(std::uint64_t seed) : impl_(std::make_unique<Impl>(seed)) {}
SimExecutor::~SimExecutor() = default;

SimProcess& SimExecutor::process(std::string name) {
  auto impl = std::make_unique<SimProcess::Impl>(*impl_, std::move(name));
  impl_->process_impls_.push_back(impl.get());
  impl_->processes_.emplace_back(new SimProcess(std::move(impl)));  // NOLINT: private constructor
  return *impl_->processes_.back();
}

MonoTime SimExecutor::now() const { return impl_->now; }
Rng& SimExecutor::rng() { return impl_->user_rng; }
std::uint64_t SimExecutor::steps() const { return impl_->steps; }
std::uint64_t SimExecutor::digest() const { return impl_->digest; }
std::string_view SimExecutor::running() const {
  const auto& fiber = impl_->current_;
  return fiber && fiber->process != nullptr ? std::string_view(fiber->process->name) : "";
}
std::string SimExecutor::dump() const { return impl_->dump(); }

bool SimExecutor::run_until(const std::function<bool()>& done, Duration limit) {
  CHECK(!impl_->current_ && !impl_->in_callback_);
  const MonoTime end = impl_->now + limit;
  impl_->horizon = end;
  while (!done()) {
    if (impl_->step() || impl_->advance()) continue;
    if (impl_->timers_.empty()) {
      LOG_WARNING("sim", "nobody can run and no deadline is left: {}", impl_->dump());
      return false;
    }
    impl_->now = end;
    impl_->steps_here = 0;
    return done();
  }
  return true;
}

void SimExecutor::settle() {
  CHECK(!impl_->current_ && !impl_->in_callback_);
  impl_->horizon = impl_->now;
  while (impl_->step() || impl_->advance()) {
  }
}

void SimExecutor::run_for(Duration duration) {
  CHECK(!impl_->current_ && !impl_->in_callback_);
  impl_->horizon = impl_->now + duration;
  while (impl_->step() || impl_->advance()) {
  }
  impl_->now = impl_->horizon;
  impl_->steps_here = 0;
}

void SimExecutor::at(MonoTime time, std::function<void()> fn) {
  impl_->timers_.emplace(TimerKey(std::max(time, impl_->now), ++impl_->next_timer_),
                         Impl::Timer{nullptr, std::move(fn)});
}

}  // namespace rubato::testing
