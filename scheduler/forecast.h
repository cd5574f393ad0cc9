// Forecast: when jobs that wait will have their minimum, if all goes on as it is: running jobs end
// when what is left of them is done at the pace of what they hold, what is released is free at
// once, and nobody comes. After each end, and where one waits for that, when another that is not to
// be stopped yet may be, a plan is made, until all that wait are placed, nothing more is known to
// end within two years, or as many plans were made as may be.
//
// Job::remaining_ms says how long a job takes at its minimum; with more GPUs it is as much faster
// as its throughput is larger. Jobs of which that is not known hold what they have for ever; and
// once one of them would start, nothing is known of what comes later, as it may end at any time.
#pragma once

#include "scheduler/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace rubato::sched {

constexpr int kForecastPlansMost = 64;

// Of ClusterState::jobs, in their order: ms from now on; 0: by the plan that is made now, or as
// soon as that plan's releases are done; none: not known. Pure; costs up to `plans_most` plans.
std::vector<std::optional<TimeMs>> expected_starts(const ClusterState& state,
                                                   const PolicyConfig& config,
                                                   int plans_most = kForecastPlansMost);
// Of ClusterState::jobs[job] alone: no plan is made beyond its start.
std::optional<TimeMs> expected_start(const ClusterState& state, const PolicyConfig& config,
                                     std::size_t job);

std::string in_about(TimeMs ms);  // "in about 12 min"

}  // namespace rubato::sched
