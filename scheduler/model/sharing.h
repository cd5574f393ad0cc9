// Two jobs on the same GPUs: GpuUse in cluster_state.h says what a host and its guest are.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <vector>

namespace rubato::sched {

// What a pod of the job takes of its node: of one that is a guest no GPUs.
Resources taken_by_pod(const Job& job);

// `job` ends: its guests among `jobs` have the GPUs that they are on for themselves from now on.
// By position in Job::held: whether a guest has those of that pod.
std::vector<bool> hand_over(const Job& job, std::vector<Job>& jobs);
// The same, and what comes free of each pod.
std::vector<Resources> freed_by_end(const Job& job, std::vector<Job>& jobs);

}  // namespace rubato::sched
