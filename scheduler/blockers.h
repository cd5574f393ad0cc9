// Blockers: for which other jobs one waits that is told "not now". A verdict names jobs only where
// the plan has settled on who makes room; this looks further, by making plans without some of them.
#pragma once

#include "scheduler/plan.h"

#include <vector>

namespace rubato::sched {

constexpr int kBlockerPlansMost = 64;

// Were these jobs gone, with what they hold, the job would get its minimum in the next plan; mostly
// (as far as kBlockerPlansMost plans tell) each of them is needed for that. Of several such sets
// one with those that its verdict names, then with the last ones that the policy serves. Empty: it
// does not wait, or not for other jobs. Cost: up to kBlockerPlansMost plans. Pure.
std::vector<JobId> blockers_of(const ClusterState& state, const PolicyConfig& config,
                               const JobId& job);

}  // namespace rubato::sched
