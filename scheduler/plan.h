// make_plan: one scheduling decision as a pure function. Returns data that can be printed, compared
// and replayed; doing it is somebody else's ten lines.
//
// The one policy so far (scheduler/policy/priority_age.cc): jobs whose queue is inside its
// guarantee first, then by priority, then by age; each its minimum, in that order; what is left
// over goes, pod by pod, to the job whose throughput it raises most, relative to that job's
// throughput at its minimum and its weight. Room for a minimum is made, in this order, by pods that
// are leaving already, by the surplus of elastic jobs, and by preempting jobs of lower priority,
// or, inside a guarantee, those that borrow it. Nothing is moved from node to node.
//
// Cost: O(J log J + (J + G) · (J + N log N)) for J jobs, N nodes, G free GPUs.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::sched {

struct Placement {
  NodeId node;
  std::string gpu_type;
  Gpus gpus = 0;
  bool operator==(const Placement&) const = default;
};

enum class ActionKind {
  kStart,  // from nothing to at least min
  kGrow,
  kShrink,   // stays at or above min
  kRepair,   // lost pods are replaced or written off
  kPreempt,  // to nothing: checkpoint, requeue
};
const char* name_of(ActionKind kind);
// What it does to a job that has `gpus` afterwards, for people: "grows to 4 GPUs".
std::string to_text(ActionKind kind, Gpus gpus);

struct Action {
  ActionKind kind = ActionKind::kStart;
  JobId job;
  std::vector<Placement> add;
  std::vector<std::int64_t> remove;  // ordinals, lost ones included
  std::string reason;                // one sentence, for the event
  bool operator==(const Action&) const = default;
};

enum class Outcome { kPlaced, kNotNow, kNever };
const char* name_of(Outcome outcome);  // "placed", "notNow", "never"

struct Verdict {
  Outcome outcome = Outcome::kPlaced;
  std::string reason;   // machine-readable, CamelCase: "InsufficientGPUs", "QueueUnknown" …
  std::string message;  // one sentence that says why and what would help
  bool operator==(const Verdict&) const = default;
};

struct Plan {
  std::vector<Action> actions;        // in the order they should be done
  std::map<JobId, Verdict> verdicts;  // one for every job
  bool operator==(const Plan&) const = default;
};

struct PolicyConfig {
  bool preempt = true;
  // A running job grows only if the step adds at least this share of its present throughput.
  double min_relative_gain = 0.01;
  // Most running jobs that one round grows.
  std::int64_t grown_per_round = 100000;
  bool operator==(const PolicyConfig&) const = default;
};

Plan make_plan(const ClusterState& state, const PolicyConfig& config);

}  // namespace rubato::sched
