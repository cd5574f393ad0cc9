// StartForecast: when jobs that wait are expected to start (scheduler/forecast), for their status:
// once a minute, and sooner where one has come to wait. On the scheduler's task.
//
// A forecast replays the policy until all that wait have a start, so it costs as much as several
// decisions. Where those are large fewer are replayed, and starts that are far away stay unknown;
// beyond some thousands of jobs and nodes there is no forecast.
#pragma once

#include "common/clock.h"
#include "scheduler/snapshot/snapshot.h"

#include <map>
#include <optional>
#include <set>

namespace rubato::control {

class StartForecast {
 public:
  // Of jobs whose verdict is kNotNow. What was said before stands while it is not far off: by a
  // minute, or a tenth of the time to it.
  const std::map<sched::JobId, WallTime>& look_at(const sched::Snapshot& decided_on,
                                                  const sched::Plan& plan, MonoTime now,
                                                  WallTime wall);

 private:
  std::optional<MonoTime> last_;
  std::map<sched::JobId, WallTime> said_;
  std::set<sched::JobId> known_;  // that waited when it was last made
};

}  // namespace rubato::control
