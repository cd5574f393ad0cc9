#include "kube/work_queue.h"

#include <algorithm>
#include <cmath>

namespace rubato::kube {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::vector<double> decades(double first, int count) {
  std::vector<double> bounds;
  bounds.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) bounds.push_back(first * std::pow(10.0, i));
  return bounds;
}

}  // namespace

// Names and labels as dashboards for Kubernetes controllers expect them.
struct WorkQueue::Instruments {
  Instruments(Metrics& registry, const std::string& name)
      : metrics(registry),
        labels{{"name", name}, {"controller", name}},
        adds(metrics.counter("workqueue_adds_total", "Keys added.", labels)),
        retries(metrics.counter("workqueue_retries_total", "Keys added again after a failure.",
                                labels)),
        queued(metrics.histogram("workqueue_queue_duration_seconds",
                                 "How long a key waited for a worker.", labels, decades(1e-8, 12))),
        worked(metrics.histogram("workqueue_work_duration_seconds", "How long a worker kept a key.",
                                 labels, decades(1e-8, 12))),
        unfinished(metrics.gauge("workqueue_unfinished_work_seconds",
                                 "Sum of the ages of work in progress.", labels)),
        longest(metrics.gauge("workqueue_longest_running_processor_seconds",
                              "Age of the oldest work in progress.", labels)) {
    for (const int priority : {kPriorityResync, kPriorityChange, kPriorityFailure}) depth(priority);
  }
  Gauge& depth(int priority) {
    Labels with = labels;
    with["priority"] = std::to_string(priority);
    return metrics.gauge("workqueue_depth", "Keys that are ready for a worker.", with);
  }
  Metrics& metrics;
  Labels labels;
  Counter& adds;
  Counter& retries;
  Histogram& queued;
  Histogram& worked;
  Gauge& unfinished;
  Gauge& longest;
};

WorkQueue::WorkQueue(Executor& executor, Metrics& metrics, WorkQueueConfig config)
    : executor_(executor),
      config_(std::move(config)),
      instruments_(std::make_unique<Instruments>(metrics, config_.name)),
      changed_(executor.make_condition()),
      tokens_(config_.rate.burst),
      tokens_at_(executor.now()) {}

WorkQueue::~WorkQueue() = default;

void WorkQueue::add(const Key& key, int priority) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  promote(executor_.now());  // what was due before this comes before this
  add_locked(key, priority);
}

void WorkQueue::add_after(const Key& key, Duration delay, int priority) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  const MonoTime now = executor_.now();
  promote(now);
  if (delay <= Duration::zero()) return add_locked(key, priority);
  delay_locked(key, now + delay, priority);
}

void WorkQueue::add_rate_limited(const Key& key, int priority) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  instruments_->retries.add();
  const MonoTime now = executor_.now();
  promote(now);
  const Duration wait = rate_limit(key, now);
  if (wait <= Duration::zero()) return add_locked(key, priority);
  delay_locked(key, now + wait, priority);
}

void WorkQueue::forget(const Key& key) {
  std::lock_guard lock(mutex_);
  failures_.erase(key);
}

int WorkQueue::failures(const Key& key) const {
  std::lock_guard lock(mutex_);
  const auto at = failures_.find(key);
  return at == failures_.end() ? 0 : at->second;
}

void WorkQueue::add_locked(const Key& key, int priority) {
  Entry& entry = entries_[key];
  if (entry.place == Entry::Place::kDelayed) {
    delayed_.erase({entry.when, key});
    entry.place = Entry::Place::kNowhere;
    priority = std::max(priority, entry.priority);
  }
  if (entry.dirty) return set_priority(key, entry, std::max(priority, entry.priority));
  instruments_->adds.add();
  entry.dirty = true;
  entry.priority = priority;
  if (!entry.processing) push_ready(key, entry);
}

void WorkQueue::delay_locked(const Key& key, MonoTime when, int priority) {
  Entry& entry = entries_[key];
  // Work that is due already comes sooner than any delay.
  if (entry.dirty) return set_priority(key, entry, std::max(priority, entry.priority));
  if (entry.place == Entry::Place::kDelayed) {
    entry.priority = std::max(priority, entry.priority);
    if (when >= entry.when) return;
    delayed_.erase({entry.when, key});
  } else {
    entry.priority = priority;
  }
  entry.place = Entry::Place::kDelayed;
  entry.when = when;
  delayed_.insert({when, key});
  changed_->notify_all();
}

void WorkQueue::push_ready(const Key& key, Entry& entry) {
  entry.place = Entry::Place::kReady;
  entry.when = executor_.now();
  entry.order = next_order_++;
  ready_.insert(Ready{entry.priority, entry.order, key});
  instruments_->depth(entry.priority).add(1);
  changed_->notify_all();
}

void WorkQueue::set_priority(const Key& key, Entry& entry, int priority) {
  if (priority == entry.priority) return;
  if (entry.place == Entry::Place::kReady) {
    ready_.erase(Ready{entry.priority, entry.order, key});
    ready_.insert(Ready{priority, entry.order, key});
    instruments_->depth(entry.priority).add(-1);
    instruments_->depth(priority).add(1);
  }
  entry.priority = priority;
}

void WorkQueue::promote(MonoTime now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    const Key key = delayed_.begin()->second;
    add_locked(key, entries_.at(key).priority);
  }
}

WorkQueue::Item WorkQueue::take_first(MonoTime now) {
  const Ready first = *ready_.begin();
  ready_.erase(ready_.begin());
  instruments_->depth(first.priority).add(-1);
  Entry& entry = entries_.at(first.key);
  CHECK(entry.dirty && !entry.processing);
  instruments_->queued.observe(seconds(now - entry.when));
  entry.place = Entry::Place::kNowhere;
  entry.dirty = false;
  entry.processing = true;
  entry.worked_priority = first.priority;
  entry.started = now;
  ++processing_;
  return Item{first.key, first.priority};
}

std::optional<WorkQueue::Item> WorkQueue::get(MonoTime deadline, std::stop_token stop) {
  std::stop_callback on_stop(stop, [this] {
    std::lock_guard lock(mutex_);
    changed_->notify_all();
  });
  std::unique_lock lock(mutex_);
  for (;;) {
    const MonoTime now = executor_.now();
    promote(now);
    if (stop.stop_requested()) return std::nullopt;
    if (!ready_.empty()) return take_first(now);
    if (shut_down_ || now >= deadline) return std::nullopt;
    const MonoTime wake = delayed_.empty() ? deadline : std::min(deadline, delayed_.begin()->first);
    changed_->wait_until(lock, wake);
  }
}

void WorkQueue::done(const Key& key) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  CHECK(at != entries_.end());
  Entry& entry = at->second;
  CHECK(entry.processing);
  entry.processing = false;
  --processing_;
  instruments_->worked.observe(seconds(executor_.now() - entry.started));
  if (entry.dirty) push_ready(key, entry);
  drop_if_idle(at);
  changed_->notify_all();  // drain() may wait for this one
}

void WorkQueue::drop_if_idle(Entries::iterator at) {
  const Entry& entry = at->second;
  if (!entry.dirty && !entry.processing && entry.place == Entry::Place::kNowhere)
    entries_.erase(at);
}

void WorkQueue::shut_down() {
  std::lock_guard lock(mutex_);
  shut_down_ = true;
  for (const auto& [when, key] : delayed_) {
    const auto at = entries_.find(key);
    at->second.place = Entry::Place::kNowhere;
    drop_if_idle(at);
  }
  delayed_.clear();
  changed_->notify_all();
}

bool WorkQueue::drain(MonoTime deadline) {
  shut_down();
  std::unique_lock lock(mutex_);
  return changed_->wait_until(lock, deadline, [&] { return ready_.empty() && processing_ == 0; });
}

// Token bucket that may go into debt, as the reference client's: each retry reserves its turn. Many
// that failed at once have their turn after RateLimits::most all the same.
Duration WorkQueue::rate_limit(const Key& key, MonoTime now) {
  const RateLimits& rate = config_.rate;
  int& failures = failures_[key];
  const double own = std::min(seconds(rate.most), seconds(rate.first) * std::pow(2.0, failures));
  ++failures;
  tokens_ = std::min(rate.burst, tokens_ + seconds(now - tokens_at_) * rate.per_second);
  tokens_at_ = now;
  // No deeper in debt than what anybody waits for: else it outlives what it came from.
  tokens_ = std::max(tokens_ - 1, -seconds(rate.most) * rate.per_second);
  const double turn = tokens_ >= 0 ? 0 : -tokens_ / rate.per_second;
  const double wait = std::min(std::max(own, turn), seconds(rate.most));
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(wait));
}

bool WorkQueue::is_shut_down() const {
  std::lock_guard lock(mutex_);
  return shut_down_;
}
std::size_t WorkQueue::ready() const {
  std::lock_guard lock(mutex_);
  return ready_.size();
}
std::size_t WorkQueue::delayed() const {
  std::lock_guard lock(mutex_);
  return delayed_.size();
}
std::size_t WorkQueue::processing() const {
  std::lock_guard lock(mutex_);
  return processing_;
}

void WorkQueue::refresh_metrics() {
  std::lock_guard lock(mutex_);
  const MonoTime now = executor_.now();
  double sum = 0;
  double longest = 0;
  for (const auto& [key, entry] : entries_) {
    if (!entry.processing) continue;
    const double age = seconds(now - entry.started);
    sum += age;
    longest = std::max(longest, age);
  }
  instruments_->unfinished.set(sum);
  instruments_->longest.set(longest);
}

}  // namespace rubato::kube
