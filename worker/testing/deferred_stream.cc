#include "worker/testing/deferred_stream.h"

#include <algorithm>
#include <utility>

#include <sys/mman.h>

namespace rubato::worker::deferred {

std::shared_ptr<Queue> Scheduler::add_queue() {
  const std::lock_guard lock(mutex_);
  auto queue = std::make_shared<Queue>();
  std::erase_if(queues_, [](const auto& known) { return known.expired(); });
  queues_.push_back(queue);
  return queue;
}

void Scheduler::enqueue(Queue& queue, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue.work.push_back(std::move(work));
  ++queue.enqueued;
}

void Scheduler::protect(bool is_open) {
  const int rights = is_open ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (const Memory& memory : memory_) CHECK_EQ(mprotect(memory.base, memory.bytes, rights), 0);
}

void Scheduler::run_locked(Queue& queue, std::uint64_t until) {
  if (queue.done >= until) return;
  if (depth_++ == 0) protect(true);
  while (queue.done < until) {
    const auto work = std::move(queue.work.front());
    queue.work.pop_front();
    work();
    ++queue.done;
  }
  if (--depth_ == 0) protect(false);
}

void Scheduler::run(Queue& queue, std::uint64_t until) {
  const std::lock_guard lock(mutex_);
  run_locked(queue, std::min(until, queue.enqueued));
}

void Scheduler::finish(Queue& queue) {
  const std::lock_guard lock(mutex_);
  run_locked(queue, queue.enqueued);
}

void Scheduler::finish_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& known : queues_)
    if (const auto queue = known.lock()) run_locked(*queue, queue->enqueued);
}

Status Scheduler::count_wait() {
  const std::lock_guard lock(mutex_);
  if (waits_left_ == 0)
    return Error(Code::kInternal, "waiting for a stream: this device is lost")
        .set_reason(kDeviceLost);
  --waits_left_;
  return ok();
}

void Scheduler::add_memory(void* base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  memory_.push_back({base, bytes});
  if (depth_ == 0) CHECK_EQ(mprotect(base, bytes, PROT_NONE), 0);
}

void Scheduler::remove_memory(void* base) {
  const std::lock_guard lock(mutex_);
  finish_all();
  std::erase_if(memory_, [base](const Memory& memory) { return memory.base == base; });
}

void DeferredEvent::record(Stream& stream) {
  queue_ = static_cast<DeferredStream&>(stream).queue();
  place_ = queue_->enqueued;
}

void DeferredEvent::hold(Stream& stream) {
  if (queue_ == nullptr) return;
  static_cast<DeferredStream&>(stream).enqueue([scheduler = scheduler_.get(), queue = queue_,
                                                place = place_] { scheduler->run(*queue, place); });
}

bool DeferredEvent::is_done() const {
  if (queue_ == nullptr) return true;
  scheduler_->run(*queue_, std::min(queue_->done + 1, place_));
  return queue_->done >= place_;
}

Status DeferredEvent::wait() {
  if (queue_ != nullptr) scheduler_->run(*queue_, place_);
  return scheduler_->count_wait();
}

}  // namespace rubato::worker::deferred
