// Queues that have their cells (Queue::cells) and nothing else.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <algorithm>
#include <string>

namespace rubato::sched {

inline bool is_confined_to_cells(const Queue& queue) {
  return !queue.cells.empty() && !queue.borrowing;
}

// … and none of this type: its jobs never have GPUs of it.
inline bool is_kept_off(const Queue& queue, const std::string& type) {
  return is_confined_to_cells(queue) &&
         std::ranges::find(queue.cells, type, &CellQuota::gpu_type) == queue.cells.end();
}

}  // namespace rubato::sched
