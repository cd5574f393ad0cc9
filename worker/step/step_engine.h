// StepEngine: one worker's side of docs/protocol.md. It takes the coordinator's commands, runs
// rounds with the other members (compute, reduce, commit, apply), joins and leaves generations,
// serves its state to newcomers, and tells how it stands.
//
// Threads: run() is the step thread and the only one that touches the replica. command() and beat()
// belong to the control thread; command() returns at once but for an Abort, which cuts the links
// first and then waits (kSettleLimit, then for an update under way) so that the standing it answers
// with stays true. Inside: one thread that forms planned generations, one that writes checkpoints,
// one per follower. Nothing here waits for the coordinator while a generation trains.
#pragma once

#include "common/result.h"
#include "worker/collective/communicator.h"
#include "worker/collective/link_hub.h"
#include "worker/step/fault_points.h"
#include "worker/step/replica.h"
#include "worker/step/sample_ledger.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rubato::wire {
class WorkerCommand;
class WorkerEvent;
}  // namespace rubato::wire

namespace rubato::worker {

constexpr auto kSettleLimit = 500ms;   // for the micro-batch in hand, before it is dropped
constexpr auto kCommitLimit = 10s;     // for an update under way when an Abort comes
constexpr auto kFormLimit = 60s;       // for the links of a generation; the coordinator is stricter
constexpr int kLevelRounds = 3;        // that a donor waits for its follower before a switch
constexpr auto kCheckpointWait = 30s;  // for the last checkpoint, before one is skipped
constexpr auto kLastCheckpointWait = 10min;   // for the one before a stop or an exit
constexpr std::uint32_t kValidationMax = 32;  // validation micro-batches per evaluation
constexpr std::uint32_t kNonFiniteMax = 4;    // different non-finite results in a row

// What the engine must know of the job beside its replica.
struct JobPlan {
  std::uint64_t stop_steps = 1;
  std::uint64_t evaluate_every = 0;    // steps; 0: never
  std::uint64_t checkpoint_every = 0;  // steps; 0: at the end and on request only
  std::string export_path;             // step records go here; empty: nowhere
  bool has_checkpoints = false;        // checkpoint.path is set
};

struct ConfiguredJob {
  JobPlan plan;
  std::unique_ptr<SampleLedger> ledger;  // may be null
  std::unique_ptr<Replica> replica;
};

struct EngineParts {
  WorkerName self;
  std::string host;  // where peers reach the hub
  LinkHub& hub;
  // From spec.training and the fingerprint the job is pinned to (empty: none yet).
  std::function<Result<ConfiguredJob>(const std::string& training, const std::string& pinned)>
      configure;
  std::function<std::unique_ptr<CommunicatorFactory>(Device&)> make_factory;
  // Any thread; must not block.
  std::function<void(const wire::WorkerEvent&)> emit;
  // Lines for people and tools (stdout), without the newline. Any thread.
  std::function<void(const std::string&)> print;
  std::string cpu;  // for people
  FaultPoints faults = {};
};

class StepEngine {
 public:
  explicit StepEngine(EngineParts parts);
  ~StepEngine();

  void command(const wire::WorkerCommand& command);
  // Emits the standing; call it a few times a second.
  void beat();
  // The step thread. Returns when retired, or after leave().
  void run();
  // Ends run() as a Retire does: the agent is gone.
  void leave(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
