// StepEngine: one worker's side of docs/protocol.md. It takes the coordinator's commands, runs
// rounds with the other members (compute, reduce, commit, apply), joins and leaves generations,
// serves its state to newcomers, and tells how it stands.
//
// Waits only through the Executor; runs unchanged in simulation.
//
// Threads: run() is the step thread and the only one that touches the replica. command() and beat()
// belong to the control thread; command() returns at once but for an Abort, which cuts the links
// first and then waits (kSettleLimit, then for an update under way) so that the standing it answers
// with stays true. Inside: one thread that forms planned generations, one that writes checkpoints,
// one per follower. Nothing here waits for the coordinator while a generation trains.
#pragma once

#include "common/executor.h"
#include "common/files.h"
#include "common/result.h"
#include "worker/collective/communicator.h"
#include "worker/collective/link_hub.h"
#include "worker/step/replica.h"
#include "worker/step/sample_ledger.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace rubato::wire {
class WorkerCommand;
class WorkerEvent;
}  // namespace rubato::wire

namespace rubato::worker {

constexpr auto kSettleLimit = 500ms;  // for the micro-batch in hand, before it is dropped
constexpr auto kCommitLimit = 10s;    // for an update under way when an Abort comes
constexpr auto kFormLimit = 60s;      // for the links of a generation; the coordinator is stricter
constexpr int kLevelRounds = 3;       // that a donor waits for its follower before a switch
constexpr auto kLastWriteWait = 10min;  // for the checkpoint in hand, before an exit
constexpr auto kExportWait = 10s;       // for the last step records, before an end
constexpr auto kSaveRetryFirst = 1s;    // after one that failed and is needed; at the end doubled
constexpr auto kSaveRetryMost = 30s;
constexpr std::uint64_t kLooksByItself = 1;   // `looked` of a worker that nobody asked yet
constexpr auto kLookRetry = 1s;               // at checkpoints on a disk that does not answer
constexpr auto kDeniedLimit = 30s;            // of a disk without an answer, until it is told
constexpr std::uint32_t kValidationMax = 32;  // validation micro-batches per evaluation
constexpr std::uint32_t kNonFiniteMax = 4;    // different non-finite results in a row
constexpr auto kIdleTick = 1min;              // of waits that nothing but news ends

// What the engine must know of the job beside its replica.
struct JobPlan {
  std::uint64_t stop_steps = 1;
  std::uint64_t evaluate_every = 0;    // steps; 0: never
  std::uint64_t checkpoint_every = 0;  // steps; 0: at the end and on request only
  std::string export_path;             // step records go here; empty: nowhere
  // The last checkpoint, before a stop or the end, is tried again for so long.
  Duration checkpoint_give_up = 30min;
  bool has_checkpoints = false;  // checkpoint.path is set
};

struct ConfiguredJob {
  JobPlan plan;
  std::unique_ptr<SampleLedger> ledger;  // may be null
  std::unique_ptr<Replica> replica;
};

struct EngineParts {
  Executor& executor;
  FileSystem& files;
  WorkerName self;
  std::string host;  // where peers reach the hub
  LinkHub& hub;
  // From spec.training and the fingerprint the job is pinned to (empty: none yet). Called again
  // after kUnavailable or kDenied without a reason(): a disk of checkpoints that does not answer.
  std::function<Result<ConfiguredJob>(const std::string& training, const std::string& pinned)>
      configure;
  std::function<std::unique_ptr<CommunicatorFactory>(Device&)> make_factory;
  // Any thread; must not block.
  std::function<void(const wire::WorkerEvent&)> emit;
  // Lines for people and tools (stdout), without the newline. Any thread.
  std::function<void(const std::string&)> print;
  std::string cpu;  // for people
  // Called at the named places of a step (worker/testing/fault_points.h), by any thread: may stop
  // or end the process, or take its time.
  std::function<void(std::string_view phase, std::uint64_t step)> reach = [](std::string_view,
                                                                             std::uint64_t) {};
};

class StepEngine {
 public:
  explicit StepEngine(EngineParts parts);
  ~StepEngine();

  void command(const wire::WorkerCommand& command);
  // Emits the standing; call it a few times a second.
  void beat();
  // The step thread. Returns when retired, or after leave(): 0; or kStuckStatus when its device is
  // lost, which it has said: the process is to end with it, and to wait for nothing of the device.
  int run();
  // Ends run() as a Retire does: the agent is gone.
  void leave(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
