// Fix: the smallest change that makes a job placeable that is told "never": placeable alone in this
// cluster, by what it asks for, what its queue lets it have, and what nodes there are.
//
// Of all ways the first by: no node is added; no selector is dropped; fewest changes; fewest GPUs
// by which numbers change (a word that changes counts as one); what the job says before what its
// queue and its nodes are. "Never" is of no policy, and neither is its fix.
//
// Cost: O(N log N) for N nodes, then some hundred tries a GPU type and kind of node, or domain; in
// the cells of a queue some hundred plans of one job. Of many jobs nodes are counted once, those
// that a job's selectors admit apart; and jobs that ask alike, in one queue, have one answer. Pure.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/plan.h"

#include <string>
#include <variant>
#include <vector>

namespace rubato::sched {

struct LowerMin {  // spec.gpus.min
  Gpus to = 0;
  bool operator==(const LowerMin&) const = default;
};
struct RaiseMax {
  Gpus to = 0;
  bool operator==(const RaiseMax&) const = default;
};
struct AnyShape {
  bool operator==(const AnyShape&) const = default;
};
struct LowerPerPod {
  Gpus to = 0;
  bool operator==(const LowerPerPod&) const = default;
};
struct AllowType {
  std::string gpu_type;
  bool operator==(const AllowType&) const = default;
};
struct PreferTopology {  // spec.topology.mode: as near as there is room, instead of in one domain
  bool operator==(const PreferTopology&) const = default;
};
struct UseMoreNodes {  // there are some that its selectors, tolerations or volumes keep it from
  bool operator==(const UseMoreNodes&) const = default;
};
struct RaiseLimit {
  std::string queue;
  std::string gpu_type;  // "*": of all types together
  Gpus to = 0;
  bool operator==(const RaiseLimit&) const = default;
};
struct RaiseGuarantee {  // of a queue that may not borrow
  std::string queue;
  std::string gpu_type;
  Gpus to = 0;
  bool operator==(const RaiseGuarantee&) const = default;
};
struct AddGpus {
  std::string gpu_type;      // "": any
  Gpus gpus = 0;             // more than there are; on nodes that hold whole pods
  bool on_one_node = false;  // a new node with so many
  bool operator==(const AddGpus&) const = default;
};
using Change = std::variant<LowerMin, RaiseMax, AnyShape, LowerPerPod, AllowType, PreferTopology,
                            UseMoreNodes, RaiseLimit, RaiseGuarantee, AddGpus>;
using Fix = std::vector<Change>;  // all of them together; mostly one

// Empty: the job could be placed if it were alone; or nothing that it or the limits of its queue
// could say makes it fit into the cells to which that is bound (Reason::kCellsFull says what helps
// then).
Fix fix_of(const ClusterState& state, const Job& job);

// Of each job that is told "never", by its position; empty: the job needs none, or there is none.
std::vector<Fix> fixes_of(const ClusterState& state, const Plan& plan);

const char* name_of(const Change& change);  // "lowerMin", "raiseLimit" …
std::string to_text(const Change& change);  // "lower spec.gpus.min to 4"
std::string to_text(const Fix& fix);        // joined by "and"

}  // namespace rubato::sched
