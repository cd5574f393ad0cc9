// What the scheduler sees: an immutable value, captured once per round. No Kubernetes word, no
// clock, no thread: operator/control fills it in, the simulator fills it in, tests fill it in.
// Quantities are integers with units; times are since an epoch that the caller chooses, one for
// all.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::sched {

using JobId = std::string;  // unique for ever (a Kubernetes uid, a trace id)
using NodeId = std::string;
using Gpus = std::int64_t;
using MilliCpu = std::int64_t;
using Bytes = std::int64_t;
using TimeMs = std::int64_t;
using GpuMs = std::int64_t;  // GPUs times milliseconds

// What one pod takes of a node, or what a node has left.
struct Resources {
  static constexpr std::size_t kOthers = 8;
  Gpus gpus = 0;
  MilliCpu cpu = 0;
  Bytes memory = 0;
  // Whatever else nodes count (pods, local storage, huge pages, network devices …): the same kind
  // at the same place everywhere in one ClusterState.
  std::array<std::int64_t, kOthers> others{};

  // How many times `wanted`, which asks for a GPU at least, is in this; 0 where any is negative.
  std::int64_t copies_of(const Resources& wanted) const;
  bool fits(const Resources& wanted) const;
  void raise_to_zero();  // what is negative
  // Saturating: a pod may ask for as much as a number holds.
  Resources& operator-=(const Resources& other);
  Resources& operator+=(const Resources& other);
  bool operator==(const Resources&) const = default;
};

// CPU and memory: of a node, or what a job has of them for each of its GPUs.
struct CpuMemory {
  MilliCpu cpu = 0;
  Bytes memory = 0;
  bool operator==(const CpuMemory&) const = default;
};

struct Node {
  NodeId id;
  std::string gpu_type;  // value of nvidia.com/gpu.product
  Gpus gpus_total = 0;
  Resources free;                              // after every pod on it and every promise made to it
  std::optional<CpuMemory> total;              // for pods of all jobs together; none: not known
  std::map<std::string, std::string> domains;  // by topology level; no entry: it is in none
  bool schedulable = true;
  std::string why_not;  // when not schedulable: "cordoned", "not ready", "lease not renewed" …
  // About to go: who has room elsewhere goes there before it does. Never schedulable.
  bool leaving = false;
  bool operator==(const Node&) const = default;
};

// Sizes a job may have, beyond min and max.
enum class Shape { kAny, kPowersOfTwo, kWholeNodes };

// How near to each other a job's pods are to be: in one domain of a level (a zone, a rack).
struct Topology {
  std::string level;      // one of ClusterState::levels
  bool required = false;  // else where there is room so, or in one of a wider level, or in fewest
  bool operator==(const Topology&) const = default;
};

// One pod of a job's present allocation. A pod is the unit of release.
struct Held {
  std::int64_t ordinal = 0;  // below zero: the allocation has dropped it already
  NodeId node;               // may be gone, if the pod is lost or leaving
  std::string gpu_type;
  Gpus gpus = 0;
  bool leaving = false;    // already told to leave: its GPUs come free soon
  bool lost = false;       // its node or process is gone: it does not count as held
  bool unstarted = false;  // lost because it did not start in time
  bool refused = false;    // lost because its worker, or its volumes, cannot be there
  // In a cell of its queue: the level of that; "": in none.
  std::string cell = {};

  bool stays() const { return !lost && !leaving; }
  // Whether its node has room where the job ends. What a lost pod held stays taken, as long as
  // nobody has said that it comes free.
  bool gives_room() const { return !lost || leaving; }
  bool operator==(const Held&) const = default;
};

// A measured point: tokens/s of this job on `gpus` GPUs of one type.
struct ThroughputPoint {
  std::string gpu_type;
  Gpus gpus = 0;
  double tokens_per_second = 0;
  bool operator==(const ThroughputPoint&) const = default;
};

// What a job gets done in a second that counts (perf/goodput.h), on `gpus` GPUs of one type that
// are on `nodes` nodes, at the batch or plan that is best there.
struct GoodputPoint {
  std::string gpu_type;
  Gpus gpus = 0;
  std::int64_t nodes = 0;  // 0: however many
  double per_second = 0;   // in a unit of the job's own, one for all its points
  bool operator==(const GoodputPoint&) const = default;
};

// What a job asks of each of its GPUs, as it was measured while it had them alone. Two jobs may
// share GPUs, where workers can (PolicyConfig::sharing) and the policy says so: the one that comes
// second is the guest of the other, its host, and takes no GPU from anybody.
struct GpuUse {
  double busy = 1;            // part of the time in which the GPU computes for it: above 0, to 1
  Bytes memory = 0;           // of the GPU
  double beside_another = 0;  // on average, part of its speed alone that it keeps beside another
  bool operator==(const GpuUse&) const = default;
};

// How fast a job was beside another one on its GPUs.
struct SpeedBeside {
  JobId job;
  double part = 1;  // of its speed alone
  bool operator==(const SpeedBeside&) const = default;
};

// What a job reads, each byte once an epoch, in any order (scheduler/model/storage.h).
struct Dataset {
  std::string name;            // jobs that say the same one read the same bytes
  Bytes bytes = 1;             // in all
  Bytes bytes_per_second = 1;  // at full speed, at `min`; of more GPUs in proportion
  bool operator==(const Dataset&) const = default;
};

// Where all data sets are: what the nodes' cache holds together, and what can be read beside it.
struct Storage {
  Bytes cache_bytes = 0;
  Bytes remote_bytes_per_second = 0;
  bool operator==(const Storage&) const = default;
};

// How fast a job is with so much CPU and memory for each GPU (scheduler/model/cpu_memory.h).
struct SensitivityPoint {
  CpuMemory per_gpu;
  double part = 1;  // of its speed with all that it can use
  bool operator==(const SensitivityPoint&) const = default;
};

struct Job {
  JobId id;
  std::string name;  // for reasons: "team-a/gpt-kjv"
  std::string queue;
  std::int64_t priority = 0;
  double weight = 1.0;
  double queued_at = 0;                           // seconds; older first among equals
  GpuMs attained_gpu_ms = 0;                      // GPU time that it has held so far
  std::map<std::string, GpuMs> attained_by_type;  // the same, as far as the GPU type is known
  TimeMs allocated_ms = -1;                       // since when it holds what it holds; -1: nothing
  TimeMs running_since_ms = -1;  // when it last started; -1: it holds nothing, or that is not known
  // How long it takes at `min` GPUs of the type where it is fastest, as far as that is known, in
  // all and from now on; none: not known.
  std::optional<TimeMs> duration_ms;
  std::optional<TimeMs> remaining_ms;
  std::optional<TimeMs> deadline_ms;  // when it should be done; none: whenever
  Gpus min = 1;
  Gpus max = 1;
  Resources per_pod;  // gpus = GPUs that come and go together
  Shape shape = Shape::kAny;
  std::vector<std::string> allow;  // GPU types; empty: any
  bool mix = false;                // may span types
  std::optional<Topology> topology;
  std::optional<std::set<NodeId>> eligible;  // nodes its selectors and tolerations admit; none: all
  std::set<NodeId> avoid;                    // nodes that it gets nothing new on for a while
  std::vector<Held> held;
  bool started = false;      // has an allocation (even if it shrank below min)
  bool settled = true;       // false while a rescale of it is under way: neither grown nor shrunk
  bool cooling = false;      // grown a short while ago: not grown again yet
  bool may_preempt = true;   // jobs of lower priority, as far as its queue allows it
  bool preemptible = true;   // false: once it runs it is never stopped for another
  TimeMs min_run_ms = 0;     // nor in that time after it last started
  std::string not_admitted;  // its queue does not take it; the reason
  std::vector<ThroughputPoint> measured;
  // For policies that ask for goodput (perf/goodput_table.h), by whoever knows a model of it; of
  // types without a point: what `measured` says, for a job whose batch is fixed.
  std::vector<GoodputPoint> goodput;
  std::optional<TimeMs> stall_ms;  // how long it stood still when GPUs were last given or taken
  // From when its pods were made until they took part, when it last started and when it last grew.
  std::optional<TimeMs> start_ms;
  std::optional<TimeMs> join_ms;
  std::int64_t restarts = 0;      // changes of its GPUs since it first started
  std::optional<GpuUse> gpu_use;  // none: not known
  // Bytes a second that its pods exchange at full speed, at `min`; 0: not known.
  double traffic = 0;
  std::optional<Dataset> dataset;             // none: not known
  std::vector<SensitivityPoint> sensitivity;  // to CPU and memory; empty: not known
  // The job on whose GPUs its pods are; "": they have GPUs of their own. Once the host has ended
  // its caller lets the guest have them.
  JobId guest_of;
  std::vector<SpeedBeside> beside;  // whom it has shared GPUs with, as far as they are there
  bool one_node = false;            // all its pods on one node, as long as it holds any there
  std::string narrowed;             // why it may use few nodes only, for reasons: a clause, or ""
  // Until it has started: it gets what is free, after all others, and nobody makes room for it;
  // why, a clause, or "".
  std::string spare_only;
  std::string refused;     // not to be scheduled; the reason (suspended jobs are simply absent)
  std::string refused_as;  // the same in CamelCase; "": Refused

  // All its pods in one domain.
  bool needs_domain() const { return topology && topology->required; }
  bool gets_spare_only() const { return !started && !spare_only.empty(); }
  // It runs and is not to be stopped for another, nor moved, now: it keeps its minimum. A guest
  // goes with its host.
  bool runs_on(TimeMs now_ms) const {
    if (!started || !guest_of.empty()) return false;
    const bool is_new = running_since_ms >= 0 && now_ms - running_since_ms < min_run_ms;
    return !preemptible || is_new;
  }
  bool operator==(const Job&) const = default;
};

struct Quota {
  Gpus guaranteed = 0;        // its jobs can always get these
  std::optional<Gpus> limit;  // and never hold more than these
  bool operator==(const Quota&) const = default;
};

// Whole pieces of the cluster that a queue is guaranteed, beside its quotas: so many cells of a
// level (scheduler/placement/cells.h).
struct CellQuota {
  std::string gpu_type;
  std::string level;  // kNodeLevel, or one of ClusterState::levels
  std::int64_t count = 0;
  bool operator==(const CellQuota&) const = default;
};
constexpr const char* kNodeLevel = "node";

// Whom a queue's jobs may preempt by their priority.
enum class Preempts { kNobody, kOwnQueue, kAnyQueue };

struct Queue {
  std::string name;
  double weight = 1.0;                  // of its share, where the policy gives shares
  std::map<std::string, Quota> quotas;  // by GPU type; "*": all types together
  bool borrowing = true;                // may hold more than it is guaranteed
  bool closed = false;
  Preempts preempts = Preempts::kAnyQueue;
  std::vector<CellQuota> cells = {};
  double created = 0;  // seconds; where cells do not suffice, older queues have theirs
  // Held by jobs that are not among ClusterState::jobs any more: finished, suspended or being
  // deleted, and their pods are still there.
  std::map<std::string, Gpus> held_by_leavers;  // by GPU type
  std::string parent = {};  // the queue that it is a part of (scheduler/model/queue_tree.h)
  // What one of those who use its parent may hold of that: in all but its quotas and its weight its
  // jobs are the parent's.
  bool of_one_user = false;
  bool operator==(const Queue&) const = default;
};

struct ClusterState {
  TimeMs now_ms = 0;
  // Of topology, the widest first: "zone", "rack". Domains of one name in two domains of a wider
  // level are two.
  std::vector<std::string> levels;
  std::vector<Node> nodes;
  std::vector<Job> jobs;
  std::map<std::string, Queue> queues;  // by name; a job in an unknown queue waits, and is told so
  std::optional<Storage> storage;       // none: not known
  bool operator==(const ClusterState&) const = default;
};

}  // namespace rubato::sched
