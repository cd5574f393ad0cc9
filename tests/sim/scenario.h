// Scenario: what a seed stands for: nodes, queues, jobs, clocks and the plan of faults. Plain
// values, a pure function of the seed; a fault says all that is random about it, so that a plan
// with fewer faults is the same story with fewer faults.
#pragma once

#include "common/clock.h"
#include "common/rng.h"
#include "kube/leader_election.h"
#include "tests/sim/phase.h"
#include "tests/sim/sim_replica.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rubato::sim {

// Why a node's workers cannot take part.
enum class Illness { kNone, kOtherBits, kNoData, kHalfData, kNoMemory, kOtherVersion };
constexpr std::uint64_t kIllnesses = 5;
const char* name_of(Illness illness);

struct NodePlan {
  std::string name;
  std::string gpu_type;
  int gpus = 4;
  std::string isa = "model";  // instruction set
  Duration added_at{0};       // since the story began
  Illness illness = Illness::kNone;
  std::string zone = {};             // its label topology.kubernetes.io/zone; "": none
  bool has_own_checkpoints = false;  // what is mounted there is no volume of the others
};

struct JobPlan {
  JobShape shape;
  std::string queue = "default";
  std::string priority_class;  // "" or "high"
  int min = 1;
  int max = 4;
  int per_pod = 1;
  Duration submit_at{0};
  bool can_finish = true;                   // false: it must stay Queued and say why
  std::string installation = {};            // by its label
  std::vector<std::string> claims = {};     // that its pods mount
  std::vector<std::string> scratches = {};  // ephemeral volumes of class "zonal"
  int max_restarts = 1000;
  std::optional<int> deadline_seconds = {};  // activeDeadlineSeconds
  std::optional<int> ttl_seconds = {};       // ttlSecondsAfterFinished
  std::string near = {};                     // spec.topology.mode; "": no topology
  std::string level = "zone";                // … and its level
};

struct QueuePlan {
  std::string name;
  int limit = 0;  // 0: none
  int cells = 0;  // whole nodes of type "fast" that it is guaranteed
  std::string parent = {};
};

// A SchedulingPolicy; without one the operator's flags are in force.
struct PolicyPlan {
  int round_seconds = 10;
  int growth_pause_seconds = 5;  // of one job
  int grown_per_round = 1;       // jobs
};

// Of the operators' Lease. Short ones make fail-overs quick; with the chart's a leader that sleeps
// for some seconds still leads when it wakes up.
constexpr kube::LeaseTiming kShortLease{.lease = 5s, .renew = 3300ms, .retry = 600ms};
constexpr kube::LeaseTiming kChartLease{};

enum class FaultKind {
  kPowerCut,         // a node loses its power, and comes back
  kNodeGone,         // … never comes back; its object goes, another node is added
  kNodeCut,          // a node reaches nobody
  kNodeCutOperator,  // a node does not reach the operator's replicas
  kNodesApart,       // two nodes do not reach each other
  kNodeFrozen,       // all of a node stands still, and goes on later
  kPodFrozen,        // one pod does: a zombie
  kPodCrash,         // its agent dies with all its workers
  kWorkerKilled,
  kWorkerHangs,
  kPodDeleted,
  kCordon,
  kNodeIdle,  // a node starts no pod
  kSuspend,   // and resumed later
  kScale,     // gpus.max is changed
  kJobDeleted,
  kReset,           // all connections of a node
  kSlowNetwork,     // messages are late
  kDuplicates,      // messages come twice
  kApiAway,         // one replica does not reach the API server
  kApiFlaky,        // 409, 429, 500 before and after the effect
  kApiExpired,      // watches end with 410
  kSlowWatch,       // events of one kind come late
  kLateWrites,      // fenced writes take effect when their client has given up
  kCrashAtWrite,    // the replica that makes the n-th write dies before or after it
  kOperatorCrash,   // the leader dies
  kOperatorFrozen,  // the leader stands still, and goes on later
  kOperatorStop,    // the leader is told to end: an upgrade
  kClock,           // a process's wall clock jumps
  kLeaseLost,       // both replicas die, and their Lease is deleted meanwhile
  kStoreRestored,   // the API server's store is as it was `spell` ago; nodes and pods are not
  // Of the volume that checkpoints lie on:
  kDiskSlow,
  kDiskFull,     // and freed again
  kDiskBroken,   // all fails, as EIO does
  kDiskLate,     // what one node writes others see later
  kBitFlip,      // in the newest checkpoint of a job
  kStarved,      // the leader, an agent or a worker gets no processor
  kNodeClock,    // the clocks of a machine jump
  kBadNewcomer,  // a node comes that cannot take part
  // The administrator deletes …
  kLeaseDeleted,
  kSecretDeleted,
  kPodForced,     // … a pod, without grace
  kNodeObject,    // … a node that is there, which comes back
  kJobRecreated,  // … a job, and submits it again under its name
  kManyLost,      // four and more pods crash at once
  kMemoryFlip,    // a bit flips in the memory of a worker, of what its vote speaks of
  kResize,        // gpus.min and gpus.max of a job are changed
  kNextVersion,   // operators and new pods are of the next version, and of this one again later
  kPolicy,        // another scheduling policy is put in force
  kSplit,         // a group of nodes and all others do not reach each other
  // Of the volume that all nodes read their data from:
  kDataSlow,
  kDataBroken,  // every read fails, as EIO does
  // A node says that it is about to go, its pods are told to end after a while, and its power goes:
  kMaintained,  // … and it comes back
  kReclaimed,   // … for good; another one is added
};
constexpr int kFaultKinds = static_cast<int>(FaultKind::kReclaimed) + 1;
const char* name_of(FaultKind kind);
using Coverage = PhaseCounts<static_cast<std::size_t>(kFaultKinds)>;

struct Fault {
  FaultKind kind = FaultKind::kPowerCut;
  Duration at{0};          // since the story began
  Duration spell{0};       // how long
  std::uint64_t pick = 0;  // whom, of those there are then
  std::uint64_t more = 0;  // what else is random
  // From `at` on it waits for a worker to reach this place, and strikes that one there: kinds of
  // faults of pods' and workers' ends, and power cuts.
  std::optional<Phase> phase = {};
};
bool strikes_at_phases(FaultKind kind);
std::string to_string(const Fault& fault);

struct Scenario {
  std::uint64_t seed = 1;
  std::vector<NodePlan> nodes;
  std::vector<QueuePlan> queues;
  std::optional<PolicyPlan> policy = {};
  std::vector<JobPlan> jobs;
  std::vector<Fault> faults;  // by time
  Duration link_delay = 1ms;  // of messages, at most
  Duration api_delay = 5ms;   // of requests, mostly
  double old_builds = 0;      // share of pods whose workers are of the build before
  WorkerTimes times = {};
  std::size_t pieces = 0;  // bytes that links between workers move at once, at most; 0: any
  Duration trouble = 40s;  // faults begin in this time; all is mended soon after
  bool clocks_differ = false;
  kube::LeaseTiming lease = kShortLease;
  // Two operators that are independent of each other, "rubato" and "other", of one replica each.
  bool has_two_installations = false;
};

// `faults`: how many are drawn; below zero: as many as the seed says.
Scenario draw_scenario(std::uint64_t seed, int faults = -1);

// Makes a big one of some of them, with up to 32 members in a job; those keep their other faults.
void draw_big(Scenario& scenario);

constexpr Duration kDrained = 9s;  // from when the pods of a node are told to end to its end

// What came later than most, each on a random stream of its own: splits, disks that are in trouble
// for minutes, data that cannot be read, a node with checkpoints of its own, nodes that are about
// to go.
void draw_later(Scenario& scenario);

// The same short story each time, with a bit of all: two jobs that start, grow, shrink, recover,
// are suspended and finish. An operator dies before (even) or after (odd) the write `crash` / 2.
Scenario sweep_scenario(std::optional<std::uint64_t> crash);

}  // namespace rubato::sim
