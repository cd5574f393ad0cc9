// Executor: the only way to wait. Controllers, the scheduler loop, the coordinator and the agent
// are written blocking; in production each task is a thread, in simulation each is a fiber under a
// seeded scheduler on one OS thread, where time jumps when nobody can run.
//
// Rules for code that runs under an Executor:
//   - wait only through Condition, sleep_* or something built on them (net::Channel, WorkQueue …);
//   - a std::mutex may guard data, but may never be held across a wait (Condition::wait releases
//   it);
//   - every wait has a deadline; a task ends soon after its StopToken says so.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

namespace rubato {

// A condition variable known to the executor. Spurious wake-ups are allowed: always wait in a loop
// or with a predicate. Thread-safe.
class Condition {
 public:
  virtual ~Condition() = default;
  // Releases `lock`, waits until notified or `deadline`, takes the lock again.
  // Returns false when the deadline passed.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, MonoTime deadline) = 0;
  virtual void notify_all() = 0;

  // Waits until `done()` holds; false when the deadline passed first.
  template <class Predicate>
  bool wait_until(std::unique_lock<std::mutex>& lock, MonoTime deadline, Predicate done) {
    while (!done()) {
      if (!wait_until(lock, deadline)) return done();
    }
    return true;
  }
};

// A running task. The destructor requests stop and joins. Move-only.
class Task {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual void request_stop() = 0;
    virtual void join() = 0;
    virtual bool done() const = 0;
  };
  Task() = default;
  explicit Task(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Task(Task&&) = default;
  Task& operator=(Task&& other) noexcept {
    finish();
    impl_ = std::move(other.impl_);
    return *this;
  }
  ~Task() { finish(); }
  void request_stop() {
    if (impl_) impl_->request_stop();
  }
  void join() {
    if (impl_) impl_->join();
    impl_.reset();
  }
  bool done() const { return !impl_ || impl_->done(); }

 private:
  void finish() {
    if (!impl_) return;
    impl_->request_stop();
    impl_->join();
  }
  std::unique_ptr<Impl> impl_;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual Clock& clock() = 0;
  virtual std::unique_ptr<Condition> make_condition() = 0;
  // Starts a task. `name` appears in logs, thread names and simulation timelines. kUnavailable: the
  // system gives no thread now; `body` is not run. For what others bring about (a connection, a
  // message, a job): it is refused, or tried again.
  virtual Result<Task> try_spawn(std::string name, std::function<void(std::stop_token)> body) = 0;
  // The same for tasks without which a program cannot be: it ends where there is no thread.
  Task spawn(std::string name, std::function<void(std::stop_token)> body) {
    return try_spawn(std::move(name), std::move(body)).value();
  }
  // Returns early (false) when `stop` is requested.
  virtual bool sleep_until(MonoTime time, std::stop_token stop = {}) = 0;

  MonoTime now() { return clock().now(); }
  bool sleep_for(Duration duration, std::stop_token stop = {}) {
    return sleep_until(now() + duration, std::move(stop));
  }
};

// Production: one OS thread per task, steady and system clocks.
class ThreadExecutor : public Executor {
 public:
  Clock& clock() override { return clock_; }
  std::unique_ptr<Condition> make_condition() override;
  Result<Task> try_spawn(std::string name, std::function<void(std::stop_token)> body) override;
  bool sleep_until(MonoTime time, std::stop_token stop) override;

 private:
  SystemClock clock_;
};

}  // namespace rubato
