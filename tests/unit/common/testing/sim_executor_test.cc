#include "common/testing/sim_executor.h"

#include "common/log.h"

#include <vector>

#include <gtest/gtest.h>

namespace rubato::testing {
namespace {

using Trace = std::vector<std::string>;

// Six processes that sleep, notify and wait at random; 10 000 events.
Trace run_story(std::uint64_t seed, std::uint64_t& digest) {
  constexpr std::size_t kEvents = 10'000;
  Trace trace;
  SimExecutor sim(seed);
  std::mutex mutex;
  std::vector<std::unique_ptr<Condition>> conditions;
  std::vector<Task> tasks;
  for (int p = 0; p < 6; ++p) {
    SimProcess& process = sim.process("p" + std::to_string(p));
    conditions.push_back(process.make_condition());
    Condition& mine = *conditions.back();
    for (int t = 0; t < 3; ++t) {
      tasks.push_back(process.spawn("t" + std::to_string(t), [&, p, t](std::stop_token stop) {
        while (!stop.stop_requested()) {
          trace.push_back(std::to_string(p) + "/" + std::to_string(t) + "@" +
                          std::to_string(sim.now().time_since_epoch().count()));
          if (sim.rng().chance(0.5)) {
            process.sleep_for(Duration(static_cast<std::int64_t>(sim.rng().below(1000))), stop);
          } else {
            std::unique_lock lock(mutex);
            mine.wait_until(lock, process.now() + 500ns);
          }
          conditions[sim.rng().below(conditions.size())]->notify_all();
        }
      }));
    }
  }
  EXPECT_TRUE(sim.run_until([&] { return trace.size() >= kEvents; }, 1h));
  digest = sim.digest();
  trace.resize(kEvents);
  return trace;
}

TEST(SimExecutor, TheSeedDecidesEverything) {
  std::uint64_t first = 0;
  std::uint64_t again = 0;
  std::uint64_t other = 0;
  const Trace trace = run_story(1, first);
  EXPECT_EQ(trace, run_story(1, again));
  EXPECT_NE(trace, run_story(2, other));
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(SimExecutor, TimeJumps) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  int ticks = 0;
  const MonoTime start = sim.now();
  const WallTime wall = process.clock().wall();
  Task task = process.spawn("ticker", [&](std::stop_token stop) {
    while (process.sleep_for(1min, stop)) ++ticks;
  });
  EXPECT_TRUE(sim.run_until([&] { return ticks == 60 * 24; }, 25h));
  EXPECT_EQ(sim.now() - start, 24h);
  EXPECT_EQ(process.clock().wall() - wall, 24h);
  EXPECT_FALSE(sim.run_until([] { return false; }, 90s));
  EXPECT_EQ(sim.now() - start, 24h + 90s);
  EXPECT_EQ(ticks, 60 * 24 + 1);
}

TEST(SimExecutor, StopWakesASleeper) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  bool slept = true;
  Task task =
      process.spawn("sleeper", [&](std::stop_token stop) { slept = process.sleep_for(10h, stop); });
  sim.settle();
  EXPECT_FALSE(task.done());
  const MonoTime before = sim.now();
  task.request_stop();
  task.join();  // outside a fiber: runs the others
  EXPECT_FALSE(slept);
  EXPECT_EQ(sim.now(), before);
}

TEST(SimExecutor, ConditionsWakeAndKeepDeadlines) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  std::mutex mutex;
  const auto condition = process.make_condition();
  bool ready = false;
  bool seen = false;
  bool late = true;
  Task waiter = process.spawn("waiter", [&](std::stop_token) {
    std::unique_lock lock(mutex);
    late = condition->wait_until(lock, process.now() + 1s, [&] { return ready; });
    const MonoTime before = process.now();
    seen = condition->wait_until(lock, before + 10s, [&] { return ready; });
    EXPECT_EQ(process.now() - before, 2s);
  });
  Task notifier = process.spawn("notifier", [&](std::stop_token stop) {
    process.sleep_for(3s, stop);
    const std::lock_guard lock(mutex);
    ready = true;
    condition->notify_all();
  });
  EXPECT_TRUE(sim.run_until([&] { return waiter.done(); }, 1min));
  EXPECT_FALSE(late);
  EXPECT_TRUE(seen);
}

struct CountsItsEnd {
  int* ends;
  ~CountsItsEnd() { ++*ends; }
};

TEST(SimExecutor, ACrashIsAPowerCut) {
  SimExecutor sim(1);
  SimProcess& victim = sim.process("victim");
  SimProcess& other = sim.process("other");
  int ends = 0;
  int ticks = 0;
  int told = 0;
  victim.on_crash([&] { ++told; });
  Task sleeping = victim.spawn("sleeping", [&](std::stop_token stop) {
    const CountsItsEnd counts{&ends};
    while (victim.sleep_for(1s, stop)) ++ticks;
  });
  Task other_task = other.spawn("other", [&](std::stop_token stop) {
    while (other.sleep_for(1s, stop)) {
    }
  });
  sim.run_for(5500ms);
  EXPECT_EQ(ticks, 5);
  Task never_run = victim.spawn("new", [&](std::stop_token) { ++ticks; });
  victim.crash();
  victim.crash();
  sleeping.request_stop();  // its stop_callback is on a stack that nobody will run again
  sim.run_for(1h);
  EXPECT_EQ(ticks, 5);
  EXPECT_EQ(ends, 0);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(victim.crashed());
  EXPECT_TRUE(sleeping.done());
  EXPECT_FALSE(other_task.done());
  Task after = victim.spawn("after", [&](std::stop_token) { ++ticks; });
  EXPECT_TRUE(after.done());
}

TEST(SimExecutor, AFiberCrashesItsOwnProcess) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  int line = 0;
  Task task = process.spawn("suicidal", [&](std::stop_token) {
    line = 1;
    process.crash();
    line = 2;
  });
  sim.settle();
  EXPECT_EQ(line, 1);
  EXPECT_TRUE(task.done());
}

TEST(SimExecutor, AFrozenProcessKeepsItsState) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  std::vector<MonoTime> ticks;
  Task task = process.spawn("ticker", [&](std::stop_token stop) {
    while (process.sleep_for(1s, stop)) ticks.push_back(process.now());
  });
  sim.run_for(2500ms);
  EXPECT_EQ(ticks.size(), 2u);
  process.freeze();
  sim.run_for(10s);
  EXPECT_EQ(ticks.size(), 2u);
  process.thaw();
  sim.settle();
  ASSERT_EQ(ticks.size(), 3u);
  EXPECT_EQ(ticks[2], sim.now());  // the third tick comes late
  sim.at(sim.now() + 5s, [&] { process.freeze(); });
  sim.at(sim.now() + 8s, [&] { process.thaw(); });
  sim.run_for(10s);
  EXPECT_EQ(ticks.size(), 3u + 4u + 3u);  // 1..4, then at 8 (held since 5), 9, 10
}

TEST(SimExecutor, ClocksAreSkewedPerProcess) {
  SimExecutor sim(1);
  SimProcess& fast = sim.process("fast");
  SimProcess& sound = sim.process("sound");
  bool woke = false;
  Task task = fast.spawn("sleeper", [&](std::stop_token stop) {
    fast.sleep_for(1h, stop);
    woke = true;
  });
  sim.run_for(1s);
  const MonoTime before = fast.now();
  const WallTime wall = fast.clock().wall();
  fast.skew(2h, -30s);
  EXPECT_EQ(fast.now() - before, 2h);
  EXPECT_EQ(fast.clock().wall() - wall, -30s);
  EXPECT_EQ(sound.now(), sim.now());
  sim.settle();
  EXPECT_TRUE(woke);
  const MonoTime shown = fast.now();
  fast.skew(-1h, 0s);
  EXPECT_EQ(fast.now(), shown);  // monotonic time never runs backwards
  sim.run_for(2h);
  EXPECT_EQ(fast.now() - shown, 1h);
}

TEST(SimExecutor, NobodyCanRunIsSaid) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("operator");
  std::mutex mutex;
  const auto condition = process.make_condition();
  std::string logged;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) { logged = text; });
  Task task = process.spawn("waiter", [&](std::stop_token) {
    std::unique_lock lock(mutex);
    condition->wait_until(lock, MonoTime::max());
  });
  EXPECT_FALSE(sim.run_until([] { return false; }, 1h));
  set_log_sink({});
  EXPECT_NE(logged.find("operator/waiter#1: waits for a condition without a deadline"),
            std::string::npos)
      << logged;
  process.crash();
}

TEST(SimExecutor, TasksSpawnAndJoinTasks) {
  SimExecutor sim(3);
  SimProcess& process = sim.process("p");
  int sum = 0;
  Task parent = process.spawn("parent", [&](std::stop_token) {
    std::vector<Task> children;
    for (int i = 1; i <= 100; ++i) {
      children.push_back(process.spawn("child", [&, i](std::stop_token) {
        process.sleep_for(std::chrono::seconds(i));
        sum += i;
      }));
    }
    for (Task& child : children) child.join();
    EXPECT_EQ(sum, 5050);
  });
  EXPECT_TRUE(sim.run_until([&] { return parent.done(); }, 2min));
  EXPECT_EQ(sum, 5050);
}

TEST(SimExecutor, AWaitOutsideRunsTheOthers) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  int ticks = 0;
  const Task task = process.spawn("ticker", [&](std::stop_token stop) {
    while (process.sleep_for(1s, stop)) ++ticks;
  });
  EXPECT_TRUE(process.sleep_for(10500ms));
  EXPECT_EQ(ticks, 10);
  std::mutex mutex;
  const auto condition = process.make_condition();
  std::unique_lock lock(mutex);
  EXPECT_FALSE(condition->wait_until(lock, process.now() + 2s, [] { return false; }));
  EXPECT_EQ(ticks, 12);
}

TEST(SimExecutor, ExceptionsOfFibersDoNotMix) {
  SimExecutor sim(1);
  SimProcess& process = sim.process("p");
  std::vector<Task> tasks;
  int good = 0;
  for (int i = 0; i < 50; ++i) {
    tasks.push_back(process.spawn("thrower", [&, i](std::stop_token) {
      try {
        throw i;
      } catch (int caught) {
        process.sleep_for(Duration(static_cast<std::int64_t>(sim.rng().below(100))));
        try {
          throw;  // the one that this fiber handles
        } catch (int again) {
          good += again == i && caught == i ? 1 : 0;
        }
      }
    }));
  }
  sim.run_for(1s);
  EXPECT_EQ(good, 50);
}

TEST(SimExecutor, AnExecutorMayEndWithTasksUnderWay) {
  int ends = 0;
  Task task;
  {
    SimExecutor sim(1);
    SimProcess& process = sim.process("p");
    task = process.spawn("sleeper", [&](std::stop_token stop) {
      const CountsItsEnd counts{&ends};
      process.sleep_for(1h, stop);
    });
    sim.settle();
  }
  EXPECT_TRUE(task.done());
  EXPECT_EQ(ends, 0);
}

TEST(SimExecutorDeathTest, BrokenRulesAreCaught) {
  EXPECT_DEATH(
      {
        SimExecutor sim(1);
        SimProcess& process = sim.process("p");
        std::mutex mutex;
        const auto condition = process.make_condition();
        const Task holder = process.spawn("holder", [&](std::stop_token) {
          std::unique_lock lock(mutex);
          condition->wait_until(lock, process.now() + 1s);
        });
        sim.settle();
        const Task sinner = process.spawn("sinner", [&](std::stop_token) {
          const std::lock_guard lock(mutex);
          process.sleep_for(1h);  // with the mutex in its hand
        });
        sim.run_for(2s);
      },
      "CHECK failed");
  EXPECT_DEATH(
      {
        SimExecutor sim(1);
        SimProcess& process = sim.process("p");
        sim.at(sim.now(), [&] { process.sleep_for(1s); });
        sim.settle();
      },
      "in_callback_");
}

}  // namespace
}  // namespace rubato::testing
