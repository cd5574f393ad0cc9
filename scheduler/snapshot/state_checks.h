// What no single field of a snapshot shows, and make_plan relies on.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/snapshot/json_cursor.h"

#include <array>
#include <cstdint>

namespace rubato::sched {

// What all pods together give back to nodes stays inside 64 bits.
class HeldSums {
 public:
  // `path`: of the job, in `trouble`.
  void add(const Job& job, const Path& path, Trouble& trouble);

 private:
  std::array<std::int64_t, 3 + Resources::kOthers> sums_{};
};

// Each guest is on GPUs of its host that no other guest is on. `jobs`: the path of their list.
void check_guests(const ClusterState& state, const Path& jobs, Trouble& trouble);

// What pods hold that stay is not free. They may hold more than a node has, which has lost GPUs
// since, and be of another type than the node now says. `nodes`: the path of their list.
void check_free(const ClusterState& state, const Path& nodes, Trouble& trouble);

}  // namespace rubato::sched
