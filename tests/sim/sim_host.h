// SimHost: a WorkerHost whose workers are the real WorkerProcess, each in a simulated process of
// its own, as the agent's children are. What stays outside is the socket between the two: here it
// is two queues without delay.
#pragma once

#include "tests/sim/world.h"
#include "worker/agent/worker_host.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace rubato::sim {

// What the machine that a pod runs on gives it.
struct HostParts {
  testing::SimExecutor& executor;
  testing::SimProcess& pod;
  World& world;
  std::string job_uid;
  std::string pod_uid;
  std::string host;
  std::string isa;
  bool has_memory = true;
  bool is_old_build = false;  // its workers are of the build before this one
  bool all_compare = true;    // no worker of the story is of that build, which compares no states
  WorkerTimes times = {};
  std::function<std::unique_ptr<testing::SimStreams>(testing::SimProcess&)> streams;
  std::function<std::unique_ptr<FileSystem>(testing::SimProcess&)> disk;
  // A worker reaches a named place of a step (worker/testing/fault_points.h). True: the thread that
  // did stays there for a moment, for what is then done to it.
  std::function<bool(std::uint32_t slot, std::string_view phase)> reach;
  std::function<void()> harmed;  // something that was to happen to a worker has
};

class SimHost : public worker::WorkerHost {
 public:
  explicit SimHost(HostParts parts);
  ~SimHost() override;  // ends all workers, as the end of a pod does

  Status spawn(std::uint32_t slot, std::uint64_t incarnation) override;
  Status send(std::uint32_t slot, const std::string& command) override;
  void kill(std::uint32_t slot) override;
  Result<worker::HostEvent> next(MonoTime deadline) override;

  void freeze();
  void thaw();
  void skew(Duration monotonic, Duration wall);
  void end_all();
  // The slot's present worker hangs until it is killed: in its step thread, with its heart beating,
  // or altogether.
  void hang(std::uint32_t slot, bool altogether);
  // A bit flips in the slot's present worker: in its next vote of a round with others, in the part
  // of the state that the vote speaks of. It flips back right behind: a bit that no vote could tell
  // of (the round was cut short, and the worker trains on alone) is beyond what is promised.
  void flip_bit(std::uint32_t slot, std::uint64_t which);
  bool hangs() const;

 private:
  struct Life;
  void end(Life& life, int exit_code, int signal);
  void flip_now(Life& life);
  void judge_flip(const Life& life, std::string_view phase);
  void put(worker::HostEvent event);

  HostParts parts_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;  // an event, for next()
  std::map<std::uint32_t, std::shared_ptr<Life>> lives_;
  std::deque<worker::HostEvent> events_;
};

}  // namespace rubato::sim
