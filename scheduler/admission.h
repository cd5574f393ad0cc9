// Load-based admission: a stage before any policy, which knows nothing of it (Blox, EuroSys'24,
// admission policies: accept while what the accepted jobs ask for is at most a threshold times the
// GPUs). It keeps the line short where many jobs at once would only take turns, or shrink each
// other.
//
// Jobs are looked at in the order in which they came. The load of a set of GPU types is the sum of
// the minimums of those that may use no others; a job that would raise the load of its types, or of
// more types that include them, above max_load times their healthy GPUs waits, and so do all later
// ones that would add to the same load. Where there is no load, a job is admitted whatever it
// needs. Always admitted are jobs that have held GPUs before, and those inside the guarantee of
// their queue; both count. Neither counted nor held back are jobs that others than the load keep
// from starting: those that are not let in, that their queue has no room for, or that do not fit
// into the nodes that there are now.
//
// Cost: O(J log J + J · S) for J jobs that name S different sets of types. Pure.
#pragma once

#include "scheduler/model/problem.h"

namespace rubato::sched {

// Tells the problem who waits (Problem::held_back). `max_load`: 0: everybody is admitted.
void admit_by_load(Problem& problem, double max_load);

// Tells it which jobs, that are not preemptible, must start inside a guarantee that has no room for
// them in this round (Problem::keep_out): what a policy would keep for them would lie idle. Asked
// once all guarantees are known; who may find room in cells is left to the session.
void admit_by_guarantees(Problem& problem);

}  // namespace rubato::sched
