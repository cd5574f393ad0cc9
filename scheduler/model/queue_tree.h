// Queues that stand under a parent are parts of it. What a parent may hold, its parts hold
// together, and jobs of its own; so is what it is guaranteed, beside what its parts are guaranteed
// each. Between parts of one parent its guarantee counts for nothing.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::sched {

// Queues of one user have a level of their own below the others.
constexpr std::size_t kQueueLevelsMost = 8;

using Queues = std::map<std::string, Queue>;

// Why its parent does not count, as if none were named, in a clause for people: there is no such
// queue, or it is a part of itself, or lies too deep. "": it counts, or there is none.
std::string why_no_parent(const Queues& queues, const Queue& queue);

// Names: the queue, its parent, its parent's parent … Empty: there is no such queue.
std::vector<std::string> with_parents(const Queues& queues, const std::string& name);

// What the parts of each queue that has some are guaranteed together, each at least what its own
// parts are: by its name, by GPU type.
std::map<std::string, std::map<std::string, Gpus>> guaranteed_to_parts(const Queues& queues);

// Queue::quotas of those that have parts and may not borrow, by name: they are guaranteed at least
// what their parts are together.
std::map<std::string, std::map<std::string, Quota>> quotas_by_parts(const Queues& queues);

}  // namespace rubato::sched
