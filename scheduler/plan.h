// make_plan: one scheduling decision as a pure function. Returns data that can be printed, compared
// and replayed; doing it is somebody else's ten lines.
//
// The policy (scheduler/policy/policy.h) says in which order jobs are served and whom they may
// displace; how that is done is the same for all of them (scheduler/session/session.h): each job
// its minimum, in that order, those inside their queue's guarantee first; what is left over goes,
// pod by pod, to the job whose throughput it raises most, relative to that job's throughput at its
// minimum and its weight. Room for a minimum is made, in this order, by pods that are leaving
// already, by the surplus of elastic jobs, and by preempting jobs that the policy lets it displace,
// or, inside a guarantee, those that borrow it. A job that is not to be preempted (Job::runs_on)
// gives its surplus and keeps its minimum, under every policy. Nothing is moved from node to node,
// but by policies that say places, and from nodes that are about to go (Node::leaving).
//
// Decisions are typed. Sentences are made of them at the edge (to_text, explain), once; nobody
// reads them back.
//
// Cost: O(J log J + (J + G) · (J + N log N)) for J jobs, N nodes, G free GPUs.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/model/cpu_memory.h"
#include "scheduler/model/storage.h"

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace rubato::sched {

struct Placement {
  NodeId node;
  std::string gpu_type;
  Gpus gpus = 0;
  std::string cell = {};  // Held::cell
  bool operator==(const Placement&) const = default;
};

enum class ActionKind {
  kStart,  // from nothing to at least min
  kGrow,
  kShrink,   // stays at or above min
  kRepair,   // lost pods are replaced or written off; those on a node that goes are replaced
  kPreempt,  // to nothing: checkpoint, requeue
};
const char* name_of(ActionKind kind);
// What it does to a job that has `gpus` afterwards, for people: "grows to 4 GPUs".
std::string to_text(ActionKind kind, Gpus gpus);

// Why a job gets GPUs or loses some.
struct RoomForMinimum {
  bool operator==(const RoomForMinimum&) const = default;
};
struct FreeGpusHelp {
  bool operator==(const FreeGpusHelp&) const = default;
};
struct WorthMoreElsewhere {
  bool operator==(const WorthMoreElsewhere&) const = default;
};
struct MaxLowered {
  bool operator==(const MaxLowered&) const = default;
};
struct SizeNotAllowed {  // gpus.shape, or perPod, has changed
  bool operator==(const SizeNotAllowed&) const = default;
};
struct LimitLowered {
  std::string queue;  // holds more than it may
  bool operator==(const LimitLowered&) const = default;
};
struct PodLost {
  enum class How { kLost, kNotStarted, kRefused };
  std::int64_t ordinal = 0;
  NodeId node;
  How how = How::kLost;
  bool operator==(const PodLost&) const = default;
};
struct MakesRoom {  // gives its surplus
  std::string job;  // name of the one that gets it
  bool operator==(const MakesRoom&) const = default;
};
struct Displaced {
  enum class By { kPriority, kGuarantee, kOrder };
  std::string job;  // name of the one that comes instead
  By by = By::kPriority;
  std::int64_t its_priority = 0;  // kPriority
  std::int64_t own_priority = 0;  // kPriority
  std::string of;                 // kGuarantee: its queue; kOrder: the policy
  bool operator==(const Displaced&) const = default;
};
struct ChangesType {  // stops, to start on GPUs of another type
  std::string to;
  bool operator==(const ChangesType&) const = default;
};
struct ChangesNodes {  // leaves some or all of its nodes, to come back on those that were chosen
  bool operator==(const ChangesNodes&) const = default;
};
struct LeavesNode {  // one that is about to go (Node::leaving)
  NodeId node;
  std::string why;  // Node::why_not
  bool operator==(const LeavesNode&) const = default;
};
struct SharesGpus {  // starts on GPUs of another job
  std::string host;  // name of that job
  bool operator==(const SharesGpus&) const = default;
};
struct StopsSharing {  // is no guest any more
  enum class Why { kHostLeaves, kNotWorthIt };
  std::string host;
  Why why = Why::kHostLeaves;
  bool operator==(const StopsSharing&) const = default;
};
using Cause = std::variant<RoomForMinimum, FreeGpusHelp, WorthMoreElsewhere, MaxLowered,
                           SizeNotAllowed, LimitLowered, PodLost, MakesRoom, Displaced, ChangesType,
                           ChangesNodes, LeavesNode, SharesGpus, StopsSharing>;
std::string to_text(const Cause& cause);  // a clause, for the event

struct Action {
  ActionKind kind = ActionKind::kStart;
  JobId job;
  std::vector<Placement> add;
  std::vector<std::int64_t> remove;  // ordinals, lost ones included
  JobId shares_with;                 // kStart: the job on whose GPUs; "": on free ones
  Cause cause;
  bool operator==(const Action&) const = default;
};

enum class Outcome { kPlaced, kNotNow, kNever };
const char* name_of(Outcome outcome);  // "placed", "notNow", "never"

enum class Reason {
  kPlaced,
  kRefused,         // by the caller: Job::refused
  kQueueUnknown,    // placed: it runs on as it is, and does not grow
  kQueueForbidden,  // Job::not_admitted
  kQueueClosed,
  kQueueLimit,         // available: what its queue may still take; in_use: what the queue holds;
                       // promised: what it will hold beside that; never: available: the most that
                       // its queue lets it have
  kNoAllowedSize,      // never
  kExceedsCluster,     // never; available: the most there is for it
  kEveryNodeAvoided,   // available: 0
  kNodesAvoided,       // available: the most there is for it but for those
  kNodesUnavailable,   // available: the most that nodes have for it which take pods, whoever of
                       // our jobs has it now
  kWaitingForRelease,  // available: free for it now; waits_for: whose GPUs come
  kInsufficientGpus,   // available: free for it now
  kBehind,             // the policy holds it back: waits_for: the job that comes first
  kCellsFull,          // its queue has its cells and nothing else; available: the most for it there
  kLoadLimit,          // not admitted yet: in_use: wanted by those before it; available: of so many
  kOthersNotPreemptible,  // waits_for: would be stopped for it, if they were not to run on
                          // (Job::runs_on); until_ms: when they may be
  kGuaranteeFull,         // Job::preemptible is false, and what its queue is guaranteed has no room
                          // for it beside others of which it is, too; in_use: held by those of its
                          // queue
  kNodeLeaves,            // placed: pods of it stay on `node`, which is about to go
};

// Of one job.
struct Verdict {
  Outcome outcome = Outcome::kPlaced;
  Reason reason = Reason::kPlaced;
  Gpus needed = 0;  // beyond what it holds
  Gpus available = 0;
  Gpus in_use = 0;
  Gpus promised = 0;  // to jobs that come first, and wait for pods to leave
  // Of kExceedsCluster and kNodesUnavailable: GPUs that these nodes have, where CPU, memory or pod
  // slots leave it fewer; 0: they do not.
  Gpus of_nodes = 0;
  std::vector<std::string> waits_for;  // names of jobs; empty: pods that are leaving
  std::string queue = {};  // of kQueueLimit: the parent whose limit it is; "": the job's queue's
  // Of kOthersNotPreemptible, in the time of ClusterState::now_ms; none: not before they end.
  std::optional<TimeMs> until_ms = {};
  NodeId node = {};  // of kNodeLeaves: one of them
  bool operator==(const Verdict&) const = default;
};

struct Plan {
  std::vector<Action> actions;    // in the order they should be done
  std::vector<Verdict> verdicts;  // of ClusterState::jobs, in their order
  // Queues whose cells cannot be had, and why, for people. By name.
  std::map<std::string, std::string> refused_cells = {};
  // With PolicyConfig::queue_weights: GPUs that each queue is guaranteed by its weight. By name.
  std::map<std::string, Gpus> queue_shares = {};
  // Of the jobs that hold GPUs once it is done, within ClusterState::storage; none: the policy
  // shares out none, or workers cannot keep to it.
  std::optional<StorageShares> storage = {};
  // The same of the CPU and memory of nodes, within Node::total.
  std::optional<CpuMemoryShares> cpu_memory = {};
  bool operator==(const Plan&) const = default;
};

// Of ClusterState::jobs, in their order: where each holds GPUs once the plan is done.
std::vector<GpusOnNodes> places_once_done(const ClusterState& state, const Plan& plan);

// A verdict for people.
struct Explanation {
  std::string reason;   // one word, CamelCase: "InsufficientGPUs", "QueueUnknown" …
  std::string message;  // one sentence that says why and what would help
  bool operator==(const Explanation&) const = default;
};
Explanation explain(const Verdict& verdict, const Job& job);

struct PolicyConfig {
  // Its name in the registry; kDefaultPolicy there is what people get who name none.
  std::string policy = "marginalThroughput";
  std::map<std::string, double> parameters;  // of the policy; what is not said has its standard
  // Of all policies:
  bool preempt = true;
  // Workers can share a GPU with those of another job. Rubato's own cannot: the simulator plays it.
  bool sharing = false;
  // Workers can keep to shares of cache and remote bandwidth. Rubato's own cannot: likewise.
  bool storage_shares = false;
  // … and of CPU and memory other than pods request, which may change while they run.
  bool cpu_memory_shares = false;
  // A running job grows only if the step adds at least this share of its present throughput. Below
  // zero what is left over goes to jobs under policies that say sizes, too, but no places.
  double min_relative_gain = 0.01;
  // Most running jobs that one round grows.
  std::int64_t grown_per_round = 100000;
  // Jobs are admitted while their minimums are at most so many times the healthy GPUs
  // (scheduler/admission.h); 0: all are.
  double max_load = 0;
  // Queues are guaranteed what they get by their weights, too (scheduler/queue_weights.h).
  bool queue_weights = false;
  bool operator==(const PolicyConfig&) const = default;
};

class Policy;  // scheduler/policy/policy.h

// config.policy and config.parameters must name a policy that there is (make_policy says so
// before).
Plan make_plan(const ClusterState& state, const PolicyConfig& config);
// The same, by a policy that is made already; config.policy is only told of.
Plan make_plan(const ClusterState& state, const Policy& policy, const PolicyConfig& config);

}  // namespace rubato::sched
