#include "common/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <system_error>
#include <thread>

#include <pthread.h>

namespace rubato {
namespace {

class ThreadCondition : public Condition {
 public:
  bool wait_until(std::unique_lock<std::mutex>& lock, MonoTime deadline) override {
    return condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
  }
  void notify_all() override { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

class ThreadTask : public Task::Impl {
 public:
  ThreadTask(std::string name, std::function<void(std::stop_token)> body)
      : thread_([this, name = std::move(name), body = std::move(body)]() mutable {
          name.resize(std::min<std::size_t>(name.size(), 15));  // the kernel's limit
          pthread_setname_np(pthread_self(), name.c_str());
          body(stop_.get_token());
          body = nullptr;  // what the body owns dies before join() returns
          done_ = true;
        }) {}
  void request_stop() override { stop_.request_stop(); }
  void join() override {
    CHECK(thread_.get_id() != std::this_thread::get_id());
    if (thread_.joinable()) thread_.join();
  }
  bool done() const override { return done_; }

 private:
  std::stop_source stop_;
  std::atomic<bool> done_{false};
  std::thread thread_;  // last: starts when the rest stands
};

}  // namespace

std::unique_ptr<Condition> ThreadExecutor::make_condition() {
  return std::make_unique<ThreadCondition>();
}

Result<Task> ThreadExecutor::try_spawn(std::string name,
                                       std::function<void(std::stop_token)> body) {
  const std::string about = "starting the thread " + name;
  try {
    return Task(std::make_unique<ThreadTask>(std::move(name), std::move(body)));
  } catch (const std::system_error& error) {
    return Error(Code::kUnavailable, about + ": " + error.what());
  }
}

bool ThreadExecutor::sleep_until(MonoTime time, std::stop_token stop) {
  std::mutex mutex;
  std::condition_variable_any condition;
  std::unique_lock lock(mutex);
  condition.wait_until(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace rubato
