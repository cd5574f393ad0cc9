// What the scheduler hears of a job's past: speeds that were measured, GPU time that it has had,
// how long it still takes. From statuses alone, so that a new leader decides as the old one. Pure.
#pragma once

#include "operator/control/objects.h"
#include "operator/coordinator/gpu_time.h"
#include "scheduler/model/cluster_state.h"

#include <map>
#include <memory>
#include <vector>

namespace rubato::control {

sched::TimeMs in_ms(WallTime time);
coordinator::GpuSeconds gpu_seconds_of(const api::TrainingJobStatus& status);

// Of all jobs, by what they train. They must outlive it.
class MeasuredSpeeds {
 public:
  explicit MeasuredSpeeds(const std::vector<std::shared_ptr<const JobObject>>& jobs);
  // The job's own points first; of others of its profile what it has not measured itself.
  std::vector<sched::ThroughputPoint> of(const JobObject& job) const;

 private:
  std::multimap<std::size_t, const JobObject*> by_profile_;
};

// Sets what Job has of history, all but `measured`, which it reads.
void add_history(const api::TrainingJob& job, sched::Job& seen);

}  // namespace rubato::control
