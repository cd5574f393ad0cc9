#include "kube/work_queue.h"

#include "common/testing/sim_executor.h"

#include <cmath>
#include <list>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

using testing::SimExecutor;
using testing::SimProcess;

Key key_named(std::uint64_t index) { return Key{"ns", "k" + std::to_string(index)}; }

// Runs `body` as a task and returns when it has ended.
void run_in(SimExecutor& sim, const std::function<void(SimProcess&)>& body) {
  SimProcess& process = sim.process("test");
  bool ended = false;
  Task task = process.spawn("body", [&](std::stop_token) {
    body(process);
    ended = true;
  });
  ASSERT_TRUE(sim.run_until([&] { return ended; }, std::chrono::hours(24 * 365)));
}

WorkQueueConfig config() { return WorkQueueConfig{"test", {}}; }

// The queue's contract, written as plainly as possible: no order kept, everything searched.
class Model {
 public:
  explicit Model(const RateLimits& rate) : rate_(rate), tokens_(rate.burst) {}

  void add(const Key& key, int priority, MonoTime now) {
    promote(now);
    Entry& entry = entries_[key];
    if (entry.delayed) priority = std::max(priority, entry.priority);
    entry.delayed = false;
    if (entry.dirty) {
      entry.priority = std::max(priority, entry.priority);
      return;
    }
    entry.dirty = true;
    entry.priority = priority;
    if (!entry.processing) entry.order = ++orders_;
  }
  void add_after(const Key& key, Duration delay, int priority, MonoTime now) {
    promote(now);
    if (delay <= Duration::zero()) return add(key, priority, now);
    Entry& entry = entries_[key];
    if (entry.dirty) {
      entry.priority = std::max(priority, entry.priority);
    } else if (entry.delayed) {
      entry.priority = std::max(priority, entry.priority);
      entry.when = std::min(entry.when, now + delay);
    } else {
      entry.delayed = true;
      entry.priority = priority;
      entry.when = now + delay;
    }
  }
  void add_rate_limited(const Key& key, int priority, MonoTime now) {
    using Seconds = std::chrono::duration<double>;
    const double own = std::min(Seconds(rate_.most).count(),
                                Seconds(rate_.first).count() * std::pow(2.0, failures_[key]++));
    tokens_ = std::min(rate_.burst, tokens_ + Seconds(now - tokens_at_).count() * rate_.per_second);
    tokens_at_ = now;
    tokens_ = std::max(tokens_ - 1, -Seconds(rate_.most).count() * rate_.per_second);
    const double turn = tokens_ >= 0 ? 0 : -tokens_ / rate_.per_second;
    const double wait = std::min(std::max(own, turn), Seconds(rate_.most).count());
    add_after(key, std::chrono::duration_cast<Duration>(Seconds(wait)), priority, now);
  }
  void forget(const Key& key) { failures_.erase(key); }
  int failures(const Key& key) const {
    const auto at = failures_.find(key);
    return at == failures_.end() ? 0 : at->second;
  }
  std::optional<WorkQueue::Item> get(MonoTime now) {
    promote(now);
    const Key* best = nullptr;
    for (const auto& [key, entry] : entries_) {
      if (!entry.dirty || entry.processing) continue;
      const auto better = [&](const Entry& other) {
        return entry.priority != other.priority ? entry.priority > other.priority
                                                : entry.order < other.order;
      };
      if (best == nullptr || better(entries_.at(*best))) best = &key;
    }
    if (best == nullptr) return std::nullopt;
    Entry& entry = entries_.at(*best);
    entry.dirty = false;
    entry.processing = true;
    return WorkQueue::Item{*best, entry.priority};
  }
  void done(const Key& key) {
    Entry& entry = entries_.at(key);
    entry.processing = false;
    if (entry.dirty) entry.order = ++orders_;
  }
  void start(MonoTime now) { tokens_at_ = now; }
  std::vector<Key> processing() const {
    std::vector<Key> keys;
    for (const auto& [key, entry] : entries_) {
      if (entry.processing) keys.push_back(key);
    }
    return keys;
  }
  std::size_t ready() const {
    std::size_t count = 0;
    for (const auto& [key, entry] : entries_) count += entry.dirty && !entry.processing ? 1 : 0;
    return count;
  }

 private:
  struct Entry {
    bool dirty = false;
    bool processing = false;
    bool delayed = false;
    int priority = 0;
    MonoTime when{};
    std::uint64_t order = 0;
  };
  // Delayed keys become due in the order of their times, then of their names.
  void promote(MonoTime now) {
    for (;;) {
      const Key* first = nullptr;
      for (const auto& [key, entry] : entries_) {
        if (!entry.delayed || entry.when > now) continue;
        if (first == nullptr || entry.when < entries_.at(*first).when) first = &key;
      }
      if (first == nullptr) return;
      Entry& entry = entries_.at(*first);
      entry.delayed = false;
      entry.dirty = true;
      if (!entry.processing) entry.order = ++orders_;
    }
  }
  RateLimits rate_;
  double tokens_;
  MonoTime tokens_at_{};
  std::map<Key, Entry> entries_;
  std::map<Key, int> failures_;
  std::uint64_t orders_ = 0;
};

void compare_with_model(std::uint64_t seed) {
  SimExecutor sim(seed);
  Metrics metrics;
  run_in(sim, [&](SimProcess& process) {
    Rng rng(seed);
    WorkQueueConfig queue_config = config();
    queue_config.rate = RateLimits{5ms, 2s, 10, 5};
    WorkQueue queue(process, metrics, queue_config);
    Model model(queue_config.rate);
    model.start(process.now());
    constexpr int kPriorities[] = {kPriorityResync, kPriorityChange, kPriorityFailure};
    for (int step = 0; step < 600; ++step) {
      const MonoTime now = process.now();
      const Key key = key_named(rng.below(6));
      const int priority = kPriorities[rng.below(3)];
      switch (rng.below(8)) {
        case 0:
        case 1:
          queue.add(key, priority);
          model.add(key, priority, now);
          break;
        case 2: {
          const Duration delay = 10ms * static_cast<int>(rng.below(5));
          queue.add_after(key, delay, priority);
          model.add_after(key, delay, priority, now);
          break;
        }
        case 3:
          queue.add_rate_limited(key, priority);
          model.add_rate_limited(key, priority, now);
          break;
        case 4:
          queue.forget(key);
          model.forget(key);
          break;
        case 5:
        case 6: {
          const auto got = queue.get(now);
          const auto expected = model.get(now);
          ASSERT_EQ(got.has_value(), expected.has_value()) << "seed " << seed << " step " << step;
          if (!got) break;
          ASSERT_EQ(got->key, expected->key) << "seed " << seed << " step " << step;
          ASSERT_EQ(got->priority, expected->priority) << "seed " << seed << " step " << step;
          break;
        }
        default:
          if (const auto busy = model.processing(); !busy.empty() && rng.chance(0.8)) {
            const Key done = busy[rng.below(busy.size())];
            queue.done(done);
            model.done(done);
          } else {
            process.sleep_for(7ms * static_cast<int>(rng.below(6)));
          }
      }
      ASSERT_EQ(queue.processing(), model.processing().size()) << "seed " << seed;
      ASSERT_EQ(queue.failures(key), model.failures(key)) << "seed " << seed;
    }
  });
}

TEST(WorkQueueProperty, EqualsTheReferenceModel) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    compare_with_model(seed);
    if (HasFatalFailure()) {
      FAIL() << "seed " << seed;
    }
  }
}

// Many workers, random adds: no key is worked on twice at once, and every add is followed by work
// that begins after it.
TEST(WorkQueueProperty, NoLostWakeUpsAndOneWorkerPerKey) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SimExecutor sim(seed);
    SimProcess& process = sim.process("test");
    Metrics metrics;
    WorkQueue queue(process, metrics, config());
    std::map<Key, int> wanted;
    std::map<Key, int> seen;
    std::set<Key> busy;
    std::vector<Task> tasks;
    for (int worker = 0; worker < 4; ++worker) {
      tasks.push_back(process.spawn("worker", [&](std::stop_token stop) {
        while (const auto item = queue.get(process.now() + std::chrono::hours(1), stop)) {
          EXPECT_TRUE(busy.insert(item->key).second) << "seed " << seed;
          seen[item->key] = wanted[item->key];
          process.sleep_for(3ms, stop);
          busy.erase(item->key);
          queue.done(item->key);
        }
      }));
    }
    Rng rng(seed);
    bool added = false;
    tasks.push_back(process.spawn("adder", [&](std::stop_token) {
      for (int i = 0; i < 500; ++i) {
        const Key key = key_named(rng.below(10));
        ++wanted[key];
        if (rng.chance(0.3)) {
          queue.add_after(key, 2ms);
        } else {
          queue.add(key);
        }
        if (rng.chance(0.4)) process.sleep_for(1ms);
      }
      added = true;
    }));
    const auto idle = [&] {
      return added && queue.ready() + queue.delayed() + queue.processing() == 0;
    };
    ASSERT_TRUE(sim.run_until(idle, std::chrono::minutes(10))) << "seed " << seed;
    EXPECT_EQ(wanted, seen) << "seed " << seed;
    queue.shut_down();
    sim.settle();
  }
}

TEST(WorkQueueTest, PrioritiesThenArrival) {
  SimExecutor sim(1);
  Metrics metrics;
  run_in(sim, [&](SimProcess& process) {
    WorkQueue queue(process, metrics, config());
    queue.add(key_named(1), kPriorityResync);
    queue.add(key_named(2));
    queue.add(key_named(3), kPriorityFailure);
    queue.add(key_named(1));  // raised, and keeps its place among equals
    for (const std::uint64_t expected : {3u, 1u, 2u})
      EXPECT_EQ(queue.get(process.now())->key, key_named(expected));
    EXPECT_FALSE(queue.get(process.now() + 1s));
  });
}

TEST(WorkQueueTest, DelayEndsWhileWaiting) {
  SimExecutor sim(1);
  Metrics metrics;
  run_in(sim, [&](SimProcess& process) {
    WorkQueue queue(process, metrics, config());
    const MonoTime start = process.now();
    queue.add_after(key_named(1), 5s);
    queue.add_after(key_named(1), 3s);  // the earlier time counts
    queue.add_after(key_named(1), 9s);
    EXPECT_EQ(queue.get(start + 60s)->key, key_named(1));
    EXPECT_EQ(process.now() - start, 3s);
  });
}

// After an outage nobody waits longer than the configuration says, however many failed in it.
TEST(WorkQueueTest, ManyThatFailedAtOnceWaitNoLongerThanMost) {
  SimExecutor sim(1);
  Metrics metrics;
  run_in(sim, [&](SimProcess& process) {
    WorkQueueConfig limited = config();
    limited.rate = {.most = 8s};
    WorkQueue queue(process, metrics, limited);
    for (std::uint64_t i = 0; i < 1000; ++i) queue.add_rate_limited(key_named(i));
    process.sleep_for(8s);
    std::size_t due = 0;
    for (; queue.get(process.now()); ++due) {
    }
    EXPECT_EQ(due, 1000u);
    // However long it lasted: soon after it the first retry of a key is as soon as ever.
    for (std::uint64_t i = 0; i < 100'000; ++i) queue.add_rate_limited(key_named(1000 + i % 7));
    process.sleep_for(9s);
    while (queue.get(process.now())) {
    }
    queue.add_rate_limited(key_named(2000));
    EXPECT_TRUE(queue.get(process.now() + 10ms));
  });
}

TEST(WorkQueueTest, ShutDownHandsOutWhatIsReady) {
  SimExecutor sim(1);
  Metrics metrics;
  run_in(sim, [&](SimProcess& process) {
    WorkQueue queue(process, metrics, config());
    queue.add(key_named(1));
    queue.add_after(key_named(2), 1s);
    queue.shut_down();
    queue.add(key_named(3));
    EXPECT_EQ(queue.get(process.now() + 60s)->key, key_named(1));
    EXPECT_FALSE(queue.drain(process.now() + 1s));  // 1 is still being worked on
    queue.done(key_named(1));
    EXPECT_TRUE(queue.drain(process.now() + 1s));
    EXPECT_FALSE(queue.get(process.now() + 60s));
  });
}

}  // namespace
}  // namespace rubato::kube
