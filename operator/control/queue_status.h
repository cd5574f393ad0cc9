// What a TrainingQueue's status says: what its jobs hold, and which parts of its spec are not kept.
// Pure.
#pragma once

#include "operator/control/cluster_view.h"

#include <map>
#include <string>

namespace rubato::control {

// Of every queue that some job names, by name: pending, running, gpus, usage. Cost: linear in jobs.
std::map<std::string, api::TrainingQueueStatus> queue_usage(const World& world);

// `usage` with the object's conditions brought up to date. `no_cells`: why its cells cannot be had
// (sched::Plan::refused_cells); "": they can.
api::TrainingQueueStatus queue_status(const api::TrainingQueue& object,
                                      api::TrainingQueueStatus usage, const std::string& no_cells,
                                      WallTime now);

}  // namespace rubato::control
