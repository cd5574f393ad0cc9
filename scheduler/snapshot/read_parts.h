// Parts of a snapshot that stand by themselves. Private to read_snapshot.cc.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/snapshot/json_cursor.h"

namespace rubato::sched {

// Of the document, of a node and of a job in it: each sets what is there.
void read_storage(JsonCursor& document, ClusterState& state);
void read_total(JsonCursor& of_node, Node& node);
void read_needs(JsonCursor& of_job, Job& job);  // of GPUs, network, data, CPU and memory

}  // namespace rubato::sched
