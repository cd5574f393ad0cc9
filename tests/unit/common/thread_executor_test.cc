#include "common/executor.h"

#include <atomic>

#include <gtest/gtest.h>
#include <pthread.h>

namespace rubato {
namespace {

constexpr auto kLong = 60s;  // far beyond what any step here needs

TEST(ThreadExecutor, ConditionWakesAWaiter) {
  ThreadExecutor executor;
  std::mutex mutex;
  const auto condition = executor.make_condition();
  bool ready = false;
  bool seen = false;
  Task task = executor.spawn("waiter", [&](std::stop_token) {
    std::unique_lock lock(mutex);
    seen = condition->wait_until(lock, executor.now() + kLong, [&] { return ready; });
  });
  {
    const std::lock_guard lock(mutex);
    ready = true;
    condition->notify_all();
  }
  task.join();
  EXPECT_TRUE(seen);
  EXPECT_TRUE(task.done());
}

TEST(ThreadExecutor, ConditionKeepsItsDeadline) {
  ThreadExecutor executor;
  std::mutex mutex;
  const auto condition = executor.make_condition();
  std::unique_lock lock(mutex);
  const MonoTime start = executor.now();
  EXPECT_FALSE(condition->wait_until(lock, start + 20ms, [] { return false; }));
  EXPECT_GE(executor.now(), start + 20ms);
  EXPECT_TRUE(lock.owns_lock());
}

TEST(ThreadExecutor, StopEndsASleep) {
  ThreadExecutor executor;
  bool slept = true;
  const MonoTime start = executor.now();
  {
    const Task task = executor.spawn(
        "sleeper", [&](std::stop_token stop) { slept = executor.sleep_for(kLong, stop); });
  }  // the destructor requests stop and joins
  EXPECT_FALSE(slept);
  EXPECT_LT(executor.now() - start, kLong);
}

TEST(ThreadExecutor, SleepWithoutAStopTokenReachesItsTime) {
  ThreadExecutor executor;
  const MonoTime end = executor.now() + 10ms;
  EXPECT_TRUE(executor.sleep_until(end, {}));
  EXPECT_GE(executor.now(), end);
}

TEST(ThreadExecutor, WhatTheBodyOwnsDiesBeforeJoinReturns) {
  ThreadExecutor executor;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  Task task = executor.spawn("a name longer than fifteen characters",
                             [owned = std::move(owned)](std::stop_token) {});
  task.join();
  EXPECT_TRUE(watch.expired());
}

// Threads of this process get a stack that no address space has room for.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(ThreadExecutor, AThreadThatCannotBeStartedIsAnAnswer) {
  ThreadExecutor executor;
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owned;
  {
    const NoMoreThreads none;
    const auto refused = executor.try_spawn("late", [owned = std::move(owned)](std::stop_token) {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    EXPECT_NE(refused.error().what().find("thread late"), std::string::npos);
  }
  EXPECT_TRUE(watch.expired());
  bool is_run = false;
  auto task = executor.try_spawn("later", [&](std::stop_token) { is_run = true; });
  ASSERT_TRUE(task.ok());
  task->join();
  EXPECT_TRUE(is_run);
}

}  // namespace
}  // namespace rubato
