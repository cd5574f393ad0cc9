// What a TrainingQueue's status says: what its jobs hold, and which parts of its spec are not kept.
// Pure.
#pragma once

#include "operator/control/cluster_view.h"
#include "scheduler/model/cluster_state.h"
#include "scheduler/model/queue_tree.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::control {

// The queues as the scheduler tells whose parent is whose: names and parents alone.
sched::Queues queue_tree(const World& world);

// Of every queue that some job names, or a job of a part of it, by name: pending, running, gpus,
// usage. Cost: linear in jobs.
std::map<std::string, api::TrainingQueueStatus> queue_usage(const World& world);

// What of its spec is not kept, as if it were not there, and why; "": it is.
struct NotKept {
  std::string cells;            // sched::Plan::refused_cells
  std::string parent;           // sched::why_no_parent
  bool weight = false;          // no weight counts under the policy in force
  std::string guarantees = {};  // missing_guarantees(): the rest of the spec is kept
};

// What a queue is guaranteed that the nodes do not have, whoever uses them, with both numbers, for
// people; "": they have it all.
std::string missing_guarantees(const api::TrainingQueueSpec& spec,
                               const std::vector<sched::Node>& nodes);

// `usage` with the object's conditions brought up to date.
api::TrainingQueueStatus queue_status(const api::TrainingQueue& object,
                                      api::TrainingQueueStatus usage, const NotKept& not_kept,
                                      WallTime now);

}  // namespace rubato::control
