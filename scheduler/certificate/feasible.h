// Whether a plan can be done: by the state and the plan's actions alone, without anything that
// makes plans. The other half of a certificate, of every policy.
//
// A plan may do only this:
//   - its actions are of jobs that there are, one each, and take from a job pods that it holds;
//   - what a node is given is free there before the plan, of each kind that the node counts, for a
//     pod that leaves in this plan holds its GPUs on (P8); and the node takes pods now;
//   - a guest is on GPUs that its host holds and keeps, which loses none meanwhile, and no two
//     guests are on the same;
//   - nobody is started for the first time who is refused or not admitted, or whose queue is closed
//     or not there;
//   - a job that grows has a size then that it may have, one that shrinks its minimum at least; its
//     new pods are as large as it asks, on nodes and types that it may use, of one type where it
//     does not mix them, on one node or in one domain where it must be;
//   - nobody is stopped who is not to be now (Job::runs_on);
//   - a queue that is given anything, and what that is a part of, has no more then than it may;
//   - a queue is given no more cells than it has, none of another queue, and nothing else where it
//     has its cells alone.
// What breaks a rule since before the plan, and the plan leaves as it is, breaks none. Who may
// displace whom is not looked at, nor in which order jobs come.
#pragma once

#include "scheduler/plan.h"

#include <string>

namespace rubato::sched {

// The first rule that it breaks, in a clause for people: `node "n1" has 2 GPUs free, and pods of 3
// are placed there`. "": it can be done. Time linear in jobs, pods held, nodes and quotas of
// queues, but for logarithms.
std::string why_infeasible(const ClusterState& state, const Plan& plan);

}  // namespace rubato::sched
