// The queues of a DeferredDevice. Private to worker/testing.
#pragma once

#include "worker/backend/device.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

namespace rubato::worker::deferred {

// One stream's work, and how much of it has run. It outlives its stream for the events that name
// it.
struct Queue {
  std::deque<std::function<void()>> work;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
};

// The memory of a device and the order in which work runs. Thread-safe.
class Scheduler {
 public:
  explicit Scheduler(std::uint64_t waits) : waits_left_(waits) {}
  std::shared_ptr<Queue> add_queue();
  void enqueue(Queue& queue, std::function<void()> work);
  // Runs the queue's work up to number `until`, one after another, with the memory open.
  void run(Queue& queue, std::uint64_t until);
  // All that was enqueued on a queue, or on any.
  void finish(Queue& queue);
  void finish_all();
  // One more wait is over: kDeviceLost once there were as many as the device is to live for.
  Status count_wait();

  void add_memory(void* base, std::size_t bytes);
  void remove_memory(void* base);

 private:
  struct Memory {
    void* base;
    std::size_t bytes;
  };
  void run_locked(Queue& queue, std::uint64_t until);
  void protect(bool is_open);

  std::recursive_mutex mutex_;  // work that waits for another queue runs that one's
  int depth_ = 0;
  std::uint64_t waits_left_;
  std::list<Memory> memory_;
  std::list<std::weak_ptr<Queue>> queues_;
};

class DeferredStream : public Stream {
 public:
  explicit DeferredStream(std::shared_ptr<Scheduler> scheduler)
      : scheduler_(std::move(scheduler)), queue_(scheduler_->add_queue()) {}
  ~DeferredStream() override { scheduler_->finish(*queue_); }
  Status synchronize() override {
    scheduler_->finish(*queue_);
    return scheduler_->count_wait();
  }
  void enqueue(std::function<void()> work) { scheduler_->enqueue(*queue_, std::move(work)); }
  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<Queue> queue_;
};

class DeferredEvent : public Event {
 public:
  explicit DeferredEvent(std::shared_ptr<Scheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  void record(Stream& stream) override;
  void hold(Stream& stream) override;
  // Each look lets one piece of work run: time passes while somebody polls.
  bool is_done() const override;
  Status wait() override;

 private:
  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<Queue> queue_;  // of the stream of the last record()
  std::uint64_t place_ = 0;
};

}  // namespace rubato::worker::deferred
