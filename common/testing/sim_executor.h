// SimExecutor: tasks as fibers (Boost.Context) on one OS thread, under a seeded scheduler and
// virtual time. When no fiber can run, time jumps to the next deadline: virtual hours cost
// milliseconds, and (seed, code) replays a run exactly.
//
// Processes: tasks spawned through a `SimProcess` belong to it. `crash()` stops them as a power cut
// does: their fibers never resume, no destructor runs, their channels close (SimNetwork).
//
// Fibers switch only where they wait. A wait outside any fiber (a test's main line) runs the others
// until it is over. A mutex held across a wait, a fiber that never waits (kSpinLimit) and more than
// kFibersMax fibers are broken invariants. What a crashed process owned stays allocated.
#pragma once

#include "common/executor.h"
#include "common/rng.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace rubato::testing {

constexpr std::size_t kFibersMax = 16'000;  // two memory maps each; the kernel gives 65 530
#if defined(RUBATO_ASAN) || defined(RUBATO_TSAN)
constexpr std::size_t kStackBytes = 1024 * 1024;  // frames are several times as large
#else
constexpr std::size_t kStackBytes = 256 * 1024;  // touched pages only; a guard page below
#endif
constexpr std::uint64_t kSpinLimit = 20'000'000;  // switches without virtual time moving

class SimExecutor;

// The Executor that one simulated process sees; its clock may be skewed against the others'.
class SimProcess : public Executor {
 public:
  struct Impl;  // opaque
  ~SimProcess() override;
  Clock& clock() override;
  std::unique_ptr<Condition> make_condition() override;
  Result<Task> try_spawn(std::string name, std::function<void(std::stop_token)> body) override;
  bool sleep_until(MonoTime time, std::stop_token stop) override;

  const std::string& name() const;
  // No fiber of this process ever runs again. Idempotent. May be called from a fiber of the process
  // itself (then it does not return) or from outside.
  void crash();
  // Frozen fibers keep their state but do not run (SIGSTOP); thaw() lets them go on.
  void freeze();
  void thaw();
  bool crashed() const;
  bool frozen() const;
  // Called once, when the process crashes; must not wait. For what lives outside the process.
  void on_crash(std::function<void()> fn);
  // Adds to what this process's clocks show; monotonic time never runs backwards.
  void skew(Duration monotonic, Duration wall);

 private:
  friend class SimExecutor;
  explicit SimProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class SimExecutor {
 public:
  struct Impl;  // opaque
  explicit SimExecutor(std::uint64_t seed);
  ~SimExecutor();
  SimProcess& process(std::string name);  // a new process; lives as long as the executor
  MonoTime now() const;
  // Runs fibers and virtual time until `done()` holds, or until `limit` of virtual time has passed
  // (false). Call from outside any fiber. When nobody can run and no deadline is left, it returns
  // false at once and logs dump().
  bool run_until(const std::function<bool()>& done, Duration limit);
  // Runs until nothing more can happen without time moving.
  void settle();
  void run_for(Duration duration);
  // Calls `fn` at a virtual time, outside any process (fault plans).
  void at(MonoTime time, std::function<void()> fn);
  Rng& rng();
  std::uint64_t steps() const;  // context switches so far
  // A hash of every switch so far (virtual time, fiber): equal digests, equal runs.
  std::uint64_t digest() const;
  // Of the process whose fiber runs now; empty outside of fibers.
  std::string_view running() const;
  // Who exists, what each waits for and until when: one line per fiber.
  std::string dump() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::testing
