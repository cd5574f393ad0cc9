// What the scheduler hears of a job's past: speeds that were measured, GPU time that it has had,
// how long it still takes. From objects alone, so that a new leader decides as the old one. Pure.
#pragma once

#include "operator/control/objects.h"
#include "operator/coordinator/gpu_time.h"
#include "scheduler/model/cluster_state.h"

#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace rubato::control {

sched::TimeMs in_ms(WallTime time);
coordinator::GpuSeconds gpu_seconds_of(const api::TrainingJobStatus& status);

// Of all jobs, by their kind (throughput_profiles.h). The objects must outlive it.
class MeasuredSpeeds {
 public:
  MeasuredSpeeds(const std::vector<std::shared_ptr<const JobObject>>& jobs,
                 const std::vector<std::shared_ptr<const ProfileObject>>& profiles);
  // The job's own points first; what it has not measured itself as the ThroughputProfiles of its
  // kind say it, of two points the later one; then of other jobs of its kind.
  std::vector<sched::ThroughputPoint> of(const JobObject& job) const;

 private:
  std::multimap<std::string_view, const JobObject*> jobs_;
  std::map<std::string_view, std::vector<const api::ThroughputPoint*>> points_;  // newest first
};

// Sets what Job has of history, all but `measured`, which it reads.
void add_history(const api::TrainingJob& job, sched::Job& seen);

}  // namespace rubato::control
