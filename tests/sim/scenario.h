// Scenario: what a seed stands for: nodes, queues, jobs, clocks and the plan of faults. Plain
// values, a pure function of the seed; a fault says all that is random about it, so that a plan
// with fewer faults is the same story with fewer faults.
#pragma once

#include "common/clock.h"
#include "common/rng.h"
#include "tests/sim/world.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rubato::sim {

struct NodePlan {
  std::string name;
  std::string gpu_type;
  int gpus = 4;
};

struct JobPlan {
  JobShape shape;
  std::string queue = "default";
  std::string priority_class;  // "" or "high"
  int min = 1;
  int max = 4;
  int per_pod = 1;
  Duration submit_at{0};
  bool can_finish = true;  // false: it must stay Queued and say why
};

struct QueuePlan {
  std::string name;
  int limit = 0;  // 0: none
};

// A SchedulingPolicy; without one the operator's flags are in force.
struct PolicyPlan {
  int round_seconds = 10;
  int growth_pause_seconds = 5;  // of one job
  int grown_per_round = 1;       // jobs
};

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
};
constexpr int kFaultKinds = static_cast<int>(FaultKind::kClock) + 1;
const char* name_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kPowerCut;
  Duration at{0};          // since the story began
  Duration spell{0};       // how long
  std::uint64_t pick = 0;  // whom, of those there are then
  std::uint64_t more = 0;  // what else is random
};
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
  Duration trouble = 40s;     // faults begin in this time; all is mended soon after
  bool clocks_differ = false;
};

// `faults`: how many are drawn; below zero: as many as the seed says.
Scenario draw_scenario(std::uint64_t seed, int faults = -1);

// The same short story each time, with a bit of all: two jobs that start, grow, shrink, recover,
// are suspended and finish. An operator dies before (even) or after (odd) the write `crash` / 2.
Scenario sweep_scenario(std::optional<std::uint64_t> crash);

}  // namespace rubato::sim
