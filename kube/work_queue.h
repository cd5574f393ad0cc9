// WorkQueue: orders keys that need work. A key is handed to one worker at a time; adds that arrive
// meanwhile are remembered, so no change is lost and no key is worked on twice at once. Higher
// priorities first, then first come. Thread-safe; blocks only in get() and drain(). O(log n) each.
//
// Each key stands in at most one place: waiting for its time, ready, or being processed (and then
// perhaps due again). A delayed key keeps the earliest time and the highest priority asked for.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/client.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace rubato::kube {

// Resyncs and first lists yield to changes; failures go before everything.
constexpr int kPriorityResync = -100;
constexpr int kPriorityChange = 0;
constexpr int kPriorityFailure = 100;

struct RateLimits {
  Duration first = 5ms;    // a key's first retry; doubles with each failure
  Duration most = 1000s;   // that any retry waits
  double per_second = 10;  // all retries of the queue together
  double burst = 100;
};

struct WorkQueueConfig {
  std::string name;  // label of the metrics
  RateLimits rate;
};

class WorkQueue {
 public:
  struct Item {
    Key key;
    int priority = kPriorityChange;
  };

  WorkQueue(Executor& executor, Metrics& metrics, WorkQueueConfig config);
  ~WorkQueue();

  void add(const Key& key, int priority = kPriorityChange);
  void add_after(const Key& key, Duration delay, int priority = kPriorityChange);
  // After the key's own backoff or the queue's turn, whichever is later; RateLimits::most at most.
  void add_rate_limited(const Key& key, int priority = kPriorityChange);
  // The key did well: its next failure starts at RateLimits::first again.
  void forget(const Key& key);
  int failures(const Key& key) const;

  // The next key, to be given back by done(). Empty at the deadline, when `stop` is requested, or
  // when the queue is shut down and nothing is left.
  std::optional<Item> get(MonoTime deadline, std::stop_token stop = {});
  void done(const Key& key);

  // No more adds; ready keys are still handed out, delayed ones are dropped.
  void shut_down();
  // shut_down(), then waits until every key was handed out and given back; false at the deadline.
  bool drain(MonoTime deadline);
  bool is_shut_down() const;

  std::size_t ready() const;
  std::size_t delayed() const;
  std::size_t processing() const;
  // Sets the gauges that grow with time; call before the metrics are read.
  void refresh_metrics();

 private:
  struct Entry {
    enum class Place { kNowhere, kDelayed, kReady } place = Place::kNowhere;
    bool dirty = false;       // needs work
    bool processing = false;  // a worker has it
    int priority = 0;         // of the work that is due
    int worked_priority = 0;  // of the work in progress
    MonoTime when{};          // kDelayed: not before; kReady: since
    std::uint64_t order = 0;  // kReady: first come
    MonoTime started{};
  };
  using Entries = std::map<Key, Entry>;
  struct Ready {  // the set's order: priority, then arrival
    int priority;
    std::uint64_t order;
    Key key;
    bool operator<(const Ready& other) const {
      return priority != other.priority ? priority > other.priority : order < other.order;
    }
  };
  struct Instruments;

  void add_locked(const Key& key, int priority);
  void delay_locked(const Key& key, MonoTime when, int priority);
  void push_ready(const Key& key, Entry& entry);
  void set_priority(const Key& key, Entry& entry, int priority);
  void promote(MonoTime now);  // delayed keys whose time has come
  Item take_first(MonoTime now);
  void drop_if_idle(Entries::iterator at);
  Duration rate_limit(const Key& key, MonoTime now);

  Executor& executor_;
  WorkQueueConfig config_;
  std::unique_ptr<Instruments> instruments_;

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  Entries entries_;
  std::set<Ready> ready_;
  std::set<std::pair<MonoTime, Key>> delayed_;
  std::map<Key, int> failures_;
  double tokens_;
  MonoTime tokens_at_;
  std::uint64_t next_order_ = 0;
  std::size_t processing_ = 0;
  bool shut_down_ = false;
};

}  // namespace rubato::kube
