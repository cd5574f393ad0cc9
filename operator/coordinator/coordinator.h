// Coordinator: decides who trains a job together. One object per operator process serves all jobs;
// each job has its own task and its own record in TrainingJob.status.membership, written by
// compare-and-swap. docs/protocol.md is its specification.
//
// The job controller says what it wants (`ensure`), and reads how things stand (`view`); it is told
// by `on_change` when a job's view changed in more than its steps. Only the leader acts: `lead`
// starts, `stop_leading` (or the end of the process) stops. Standbys answer agents with NOT_LEADER.
// Waits only through the Executor; runs unchanged in simulation. Thread-safe.
#pragma once

#include "common/executor.h"
#include "common/json.h"
#include "common/metrics.h"
#include "common/net/channel.h"
#include "kube/client.h"
#include "operator/coordinator/gpu_time.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rubato::coordinator {

struct Timing {
  Duration heartbeat = 250ms;        // agents send this often
  Duration silence = 2500ms;         // no heartbeat for this long: dead
  Duration reconnect_grace = 250ms;  // a connection ended: dead unless it is back by then
  Duration standing_deadline = 2s;   // answers to an Abort (floor)
  Duration form_deadline = 10s;      // links of a new generation (floor)
  Duration start_deadline = 10min;   // a worker's way from its first word to READY
  Duration follow_deadline = 10min;  // a newcomer's state transfer
  Duration progress_floor = 20s;     // no sign of work for this long, or for
  double progress_factor = 8;        // this many median steps: stuck. What is called a floor
                                     // above grows with the job in the same way
  Duration first_step = 2min;        // instead, until a first step tells how long one takes
};

// What the job controller wants of a job. Equal input twice is a no-op.
struct Wish {
  kube::Key job;
  std::string uid;
  std::string training;  // JSON of spec.training, defaults filled in
  std::uint32_t micro_batches = 1;
  // training.stop.steps. Another one than the generation was formed with makes a planned change
  // with the same workers, so that all take it up at one commit. 0: as `training` says.
  std::uint64_t stop_steps = 0;
  // Its workers hold no state of ours: a person's program, which is ended and started again
  // whenever its members change (job_restart.cc). micro_batches is the most that may be members
  // then.
  bool is_stateless = false;
  std::uint32_t min_workers = 1;    // below: park
  std::uint32_t start_workers = 1;  // first generation waits for this many ready workers
  // Pods that exist and may be members, oldest first. A pod missing here is gone or going: it is
  // left out at once (`leaving` = false means keep).
  struct Pod {
    std::string name;
    std::string uid;
    std::string node;
    std::string gpu_type;
    std::uint32_t slots = 1;
    bool leaving = false;  // planned leave: switch to a generation without it, then retire it
    bool operator==(const Pod&) const = default;
  };
  std::vector<Pod> pods;
  // Checkpoint, stop, retire (suspend, delete, requeue). False again before it is done: the workers
  // go on, in a new generation.
  bool stop = false;
  std::string stop_reason;
  // Of a stop: a step that is not committed in half of it is abandoned, so that the checkpoint (of
  // the last committed step) is written in the other half; then the workers are retired.
  Duration grace = 60s;
  bool operator==(const Wish&) const = default;
};

enum class Phase {
  kWaiting,  // not enough workers are ready
  kForming,  // a start, the first one or anew, of which no member holds a state yet
  kTraining,
  kSwitching,   // a planned change is under way; training goes on
  kRecovering,  // a failure is being repaired; training stands still
  kParked,      // below min: state is held
  kStopping,
  kStopped,   // as asked: checkpoint written, workers retired
  kFinished,  // last step committed, final checkpoint written, workers retired
  kFailed,    // permanent: see `failure`
};
const char* name_of(Phase phase);

struct MemberView {
  std::string pod;
  std::string pod_uid;
  std::string node;
  std::string gpu_type;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
};

// A change of membership that has ended, for status.rescales, events and metrics.
struct Change {
  std::uint64_t generation = 0;  // the new one
  std::string kind;              // "start", "recover", "join", "leave", "settings": same workers
  std::string reason;            // "node n3 lost: agent connection closed", "allocation epoch 7" …
  std::string cause;             // of a recovery: View::recovers_from; else empty
  std::uint32_t from = 0;        // workers before and after
  std::uint32_t to = 0;
  double detect_seconds = 0;  // from the last sign of life to the decision (recover)
  // From the last commit before to the first after, less one step. Where no step came between two
  // changes, the later one begins to count where the earlier one ends.
  double stall_seconds = 0;
  // Where the time from the decision to the first commit went: all standings are here, the record
  // is written (of a recovery both), all have formed, the first step is committed. Sums up to it.
  double answer_seconds = 0;
  double write_seconds = 0;
  double form_seconds = 0;
  double first_step_seconds = 0;
  std::uint32_t salvaged = 0;    // micro-batches kept
  std::uint32_t recomputed = 0;  // micro-batches computed again
  std::uint64_t at_step = 0;
  MonoTime formed_at{};  // all stand in it
};
// Starts and changes of settings are none.
bool is_rescale(const Change& change);

struct PodFailure {  // something a restart policy may want to count
  std::string pod;
  std::string pod_uid;
  std::string reason;  // "Crash", "OutOfMemory", "AgentLost", "Silent", "Stuck"
  std::string message;
  bool infrastructure = false;
};

// A worker that cannot take part where it is: it is never a member, and its pod is of no use. No
// failure of the job, for another node may do.
struct Refusal {
  std::string pod;
  std::string pod_uid;
  std::string node;
  std::string reason;   // "FingerprintMismatch", "DataNotFound" …
  std::string message;  // with both sides: both processors, both digests, the path
  bool operator==(const Refusal&) const = default;
};

// What changes with every step.
struct Progress {
  std::uint64_t step = 0;
  std::uint64_t seq = 0;
  double loss = 0;  // mean per token at `step`; meaningful when step > 0
  std::uint64_t tokens = 0;
  double step_seconds = 0;  // median
  double noise_scale = 0;   // of the gradient, in tokens; 0: not known
  GpuSeconds gpu_seconds;   // since `since`: what the coordinator has seen itself
  MonoTime since{};         // another one: counted from nothing again
};

struct View : Progress {
  Phase phase = Phase::kWaiting;
  std::string reason;    // one sentence: why it is in this phase
  bool shrinks = false;  // kSwitching: to fewer workers
  // kRecovering, kParked: what it comes from. The PodFailure::reason or Refusal::reason of a member
  // that is lost, the reason of a worker's failure ("DataDamaged", "StepFailed" …), or
  // "PodDeleted", "LinkFailed", "Stuck", "Suspending", "Resumed". Empty: a new leader does not
  // know.
  std::string recovers_from;
  bool taking_over = false;  // a new leader that has not heard from all workers yet; they train on
  std::uint64_t generation = 0;
  bool awaits_first_step = false;  // since the last change: step_seconds is of before it
  std::vector<MemberView> members;
  std::int64_t highest_ordinal = -1;      // of the pods whose agents came to us, wanted or not
  std::vector<std::string> heard_pods;    // their agents are connected
  std::vector<std::string> ready_pods;    // connected and configured
  std::vector<std::string> retired_pods;  // their workers have left: the pods may be deleted
  std::uint64_t validation_step = 0;      // of the last evaluation; 0: none yet
  double validation_loss = 0;             // meaningful when validation_step > 0
  std::uint64_t checkpoint_step = 0;
  bool has_checkpoint = false;
  // Could a worker on another node than the writer's read the checkpoint? Unset: nobody had to yet.
  std::optional<bool> checkpoint_shared;
  std::string checkpoint_unshared_by;  // where it could not be read, for people
  // The newest one that was found damaged and set aside, for people; empty: one was written since.
  // Unset: nothing is known.
  std::optional<std::string> checkpoint_damaged;
  // Why the one in hand cannot be written, and where; tried again meanwhile.
  std::string checkpoint_failing;
  // Whom the disk of checkpoints has not answered for long, when it is to begin; it asks on.
  std::string checkpoint_unread;
  // Whose process has shown no sign of work since it began, for long; empty: nobody's. A script of
  // runtime `pytorch` shows none before it makes its Job and iterates over it.
  std::string idle_process;
  // The first process of a pod is on its way to READY, and has not been too long about it: it reads
  // the data, say, or a script makes its model. One that was started again has failed before.
  bool is_starting = false;
  std::uint64_t recomputed_steps = 0;
  std::uint64_t ended_at = 0;  // the step after which the script ended the job; 0: it has not
  std::optional<MonoTime> parked_since;
  // In kWaiting since; none while the record is not read yet or a new leader waits for workers.
  std::optional<MonoTime> waiting_since;
  // A stop was asked for, and not taken back: since when, and why. Stays when it is done.
  std::optional<MonoTime> stop_since;
  std::string stop_reason;
  // kStopped, kFinished or kFailed as soon as that is decided, while workers may still be leaving;
  // no wish changes it any more. kWaiting: not decided.
  Phase end = Phase::kWaiting;
  std::vector<Change> changes;  // newest last; bounded by kChangesKept
  // Of the job's life. A leader counts those it made itself when they have ended, and those of the
  // leaders before it from the record, where each is when it is decided: none is lost with them.
  std::uint64_t rescales = 0;
  // Members held different states: who, where, which digests, what follows. For kDivergedShown.
  std::string diverged;
  std::vector<Refusal> refused;      // workers of pods that are still wanted; at most one a slot
  std::vector<PodFailure> failures;  // newest last; bounded by kFailuresKept
  std::uint64_t failure_count = 0;   // of the job's life, infrastructure's not counted
  std::string failure_reason;        // kFailed
  std::string failure_message;
};
constexpr std::size_t kChangesKept = 64;
constexpr auto kDivergedShown = 10min;  // also of the condition, under whichever leader
// A node on which members' states differed from the majority's, or devices were lost, twice within
// this time is avoided.
constexpr auto kTroubleAgain = 1h;
constexpr std::size_t kFailuresKept = 64;
// Times that no majority of the members held one state, without a checkpoint in between. After so
// many the job ends (Diverged): its script makes the states differ, or a memory does each time.
constexpr std::size_t kUndecidedMost = 4;

// What agents are known by, and what we show them.
struct Credentials {
  std::string master_key;  // tokens are hmac(master_key, job uid)
  net::TlsConfig tls;      // the operator's server certificate, and who signs agents' ones
};

struct Dependencies {
  Executor& executor;
  net::Network& network;
  kube::Client& client;
  Metrics& metrics;
  Credentials credentials;
  net::Endpoint listen;                         // port 0 allowed
  std::function<std::string()> leader_address;  // told to agents; empty when unknown
  std::string identity;                         // unique for each life of the process
  // Somebody else has led under this epoch, says an agent with that leader's seal, or a record: who
  // leads, or will, must do so under a higher one. Called from any task; must not wait. May be
  // null.
  std::function<void(std::uint64_t epoch)> on_epoch;
  Timing timing;
};

class Coordinator {
 public:
  explicit Coordinator(Dependencies dependencies);
  ~Coordinator();

  // Opens the port; agents are answered from now on. Once.
  Status start();
  net::Endpoint local() const;
  // For agents that connect from now on. Any task; after start().
  void renew(Credentials credentials);

  // `epoch`: the Lease's leaseTransitions. Membership writes test it.
  void lead(std::uint64_t epoch);
  void stop_leading();

  // `seen_step`: the last committed step that somebody has seen, for a job that is new to this
  // leader; its record may be older. A job that the system has no threads for is begun by a later
  // call.
  void ensure(const Wish& wish, std::uint64_t seen_step = 0);
  void forget(const std::string& job_uid);
  std::optional<View> view(const std::string& job_uid) const;
  std::size_t jobs() const;  // how many it leads
  // Since when this process has been awake (StallWatch). Who judges pods by time counts from there.
  MonoTime awake_since() const;
  // Called from the coordinator's tasks; must only enqueue. Set before start().
  void on_change(std::function<void(const kube::Key& job)> handler);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::coordinator
