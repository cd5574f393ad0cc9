// Guarantees by weight: what weighted fairness between queues would give them of the minimums that
// their jobs ask for is guaranteed to them, too, beside what they say themselves.
//
// Minimums are handed out one after the other, as if nobody held anything: each goes to the queue
// that has least for its weight (Queue::weight), and of that queue to the job of the highest
// priority, of equals to the oldest. Queues inside what they say that they are guaranteed come
// first. What fits no more, in the healthy GPUs of the types that a job may use or in the limits of
// its queues, is left out, and smaller ones go on. (Progressive filling: Ghodsi et al., "Dominant
// Resource Fairness", NSDI 2011, §4.1, of GPUs alone.) Parts of a queue share what that gets in the
// same way; jobs of its own are one more part, of weight 1.
//
// So shares follow from who asks and not from who holds: they stay while no job comes or goes.
#pragma once

#include "scheduler/model/problem.h"

#include <map>
#include <string>

namespace rubato::sched {

// GPUs of all types together, by queue, its parts included. O(J log J + J (D Q + P)) for J jobs,
// queues of D levels with Q parts each, and P sets of types that jobs may use.
std::map<std::string, Gpus> shares_by_weight(const Problem& problem);

// Raises what queues are guaranteed of all types together to their shares, which it returns.
// Queues that may not borrow are limited to what they say, and stay as they are.
std::map<std::string, Gpus> guarantee_by_weight(Problem& problem);

}  // namespace rubato::sched
