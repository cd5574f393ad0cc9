// The seam between a policy and everything else. A policy says in which order jobs are served and
// whom they may displace (Targets). What that means for pods and nodes (start, grow, shrink,
// repair, preempt, placement, queues' quotas) is the same for all of them, and none of its
// business: scheduler/session/session.h.
//
// A policy is a value: its parameters are given when it is made, it keeps nothing between two
// decisions, and equal problems get equal targets. What it may look at is in the ClusterState:
// what jobs declare, what they hold, what was measured of them, and what a caller knows of
// durations, if the policy's descriptor asks for it.
#pragma once

#include "scheduler/model/cpu_memory.h"
#include "scheduler/model/problem.h"
#include "scheduler/model/storage.h"
#include "scheduler/model/value_table.h"

#include <optional>
#include <string>
#include <vector>

namespace rubato::sched {

// What happens to two jobs on the same GPUs.
enum class Sharing {
  kNone,      // a GPU has one owner
  kEqual,     // both lose speed
  kLeftover,  // the guest gets what its host leaves, which loses nothing
};

enum class Knows {
  kNothing,    // beyond what was observed: GPU time attained, throughput where it ran
  kDuration,   // how long a job takes at its minimum
  kRemaining,  // how long it still takes at its minimum
};
const char* name_of(Knows knows);

struct Parameter {
  std::string name;  // camelCase, as in spec.parameters of a SchedulingPolicy
  double least = 0;
  double most = 0;
  double standard = 0;  // what holds unless it is said
  std::string unit;     // "s", "GPU-s", "" …
  std::string about;
  bool is_whole = false;  // it counts: a fraction is refused
};

struct Descriptor {
  std::string name;    // lowerCamelCase, as in spec.policy
  std::string about;   // one line
  std::string rule;    // whole sentences: what it does
  std::string choose;  // whole sentences: when to choose it, and when not
  std::string source;  // paper or origin
  std::vector<Parameter> parameters;
  Knows knows = Knows::kNothing;
  // What is left over after the minimums raises jobs towards their maximum; a simulation gives the
  // jobs of others one size only, as they were published.
  bool elastic = false;
  // Decides differently as time passes although nothing happens: a round every round interval.
  bool timed = false;
  bool uses_throughput = false;     // decides differently once a speed was observed
  bool uses_deadlines = false;      // looks at Job::deadline_ms
  bool uses_weights = false;        // looks at Queue::weight, whatever PolicyConfig::queue_weights
  bool uses_goodput = false;        // looks at Job::goodput: jobs may adapt their batch under it
  Sharing shares = Sharing::kNone;  // needs workers that can: PolicyConfig::sharing
  // Shares out cache and remote bandwidth; needs workers that can: PolicyConfig::storage_shares.
  bool shares_storage = false;
  bool shares_cpu_memory = false;  // likewise: PolicyConfig::cpu_memory_shares
};

// Whom a job below its minimum may displace, besides those that borrow its queue's guarantee, and
// what its queue and itself leave it (Queue::preempts, Job::may_preempt, PolicyConfig::preempt).
enum class Displaces {
  kNobody,
  kLowerPriority,
  kLaterInOrder,  // of equal or lower priority
};

struct Targets {
  std::vector<JobIndex> order;  // all jobs, first served first
  Displaces displaces = Displaces::kLowerPriority;
  // The first job that waits for GPUs holds up all behind it.
  bool head_blocks = false;
  // By JobIndex: the GPUs that each job should have; empty: says nothing, and what is left over
  // goes by marginal throughput. Who has more, and more than its minimum, gives back what somebody
  // below its size can use. Minimums are served in order all the same, whatever the sizes are.
  std::vector<Gpus> sizes = {};
  // Those sizes hold: who is to have nothing does not start, but inside its queue's guarantee.
  bool sizes_hold = false;
  // By JobIndex: the GPUs that a job starts with at least, where the cluster has so many; 0: its
  // minimum. Where no room is made for so many it starts with less, in rounds that make room for
  // nobody. Together with `sizes` alone.
  std::vector<Gpus> starts = {};
  // Sizes are kept against jobs below their minimum: nobody is made to give them what would leave
  // it less than its size, but to be stopped. Else all give what they have beyond their minimum.
  // Together with `sizes` alone.
  bool sizes_are_kept = false;
  // By JobIndex: the node of each of its pods, as many as its size says; none, or empty: whichever
  // has room, as for a job whose pods must all be in one domain. Pods that are elsewhere leave, and
  // come back once there is room: together with `sizes` alone.
  std::vector<std::optional<std::vector<NodeIndex>>> places = {};
  // By JobIndex: the type that it should have, if it holds none and there is room; empty: whichever
  // has most room.
  std::vector<std::optional<TypeIndex>> types = {};
  // Those types hold: who has one starts on no other, and who holds GPUs of another is stopped, to
  // start there, once there is room or it can make some.
  bool types_hold = false;
  // Sizes and types are by GPUs in all. So a job that may use some nodes only (eligible, avoided,
  // in one domain) and finds no room there for what it is to have, where none is made for it
  // either, starts with less (as by `starts`) or on another type, in rounds that make room for
  // nobody.
  bool few_nodes_yield = false;
  // Of jobs whose work left is known: who is to have nothing, and runs, is stopped where another
  // one comes to its size by that, and what leaves is kept for that one. Who is to have nothing,
  // and waits, starts with what the growth of all leaves. Together with `sizes` alone.
  bool stops_for_growth = false;
  // By JobIndex: the jobs on whose GPUs it may be as long as it has none of its own, tried in this
  // order; the guest of another one stops. Empty: nobody shares. A guest counts for no quota, and
  // does not grow. Heard where workers can share (PolicyConfig::sharing).
  std::vector<std::vector<JobIndex>> hosts = {};
};

// Beside this interface each has a static describe(), and, if that names parameters, a constructor
// from their values, in its order.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual Targets decide(const Problem& problem) const = 0;
  // What it maximises in this round, for certificates; none: it has no such thing.
  virtual std::optional<ValueTable> values(const Problem& problem) const;
  // Where there is storage: what jobs get of cache and remote bandwidth, that hold `gpus`, by job,
  // once the plan is done; none: it says nothing of it.
  virtual std::optional<StorageShares> share_storage(const ClusterState& state,
                                                     const std::vector<Gpus>& gpus) const;
  // The same of CPU and memory of the nodes where each has its GPUs, by job.
  virtual std::optional<CpuMemoryShares> share_cpu_memory(
      const ClusterState& state, const std::vector<GpusOnNodes>& places) const;
  // When it would decide differently although nothing happens until then; none: never.
  virtual std::optional<TimeMs> next_wake(const ClusterState& state) const;
};

}  // namespace rubato::sched
