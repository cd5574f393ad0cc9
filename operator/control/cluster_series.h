// Series of jobs and queues, computed from the caches when they are asked for: a pure function of
// the objects, so a scrape costs one walk over them and nothing is kept between two.
//
// Bounded: a job's own series are shown for kJobsWithSeries jobs (those that hold GPUs first, then
// the oldest that have not ended, then the ended); `rubato_jobs_without_series` counts the others.
// They leave with the job. Queues and GPU types beyond their bounds are shown together as
// "(other)".
#pragma once

#include "common/clock.h"
#include "common/exposition.h"
#include "kube/objects/node.h"
#include "operator/control/objects.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::control {

constexpr std::size_t kJobsWithSeries = 2000;
constexpr std::size_t kQueuesWithSeries = 256;
constexpr std::size_t kGpuTypesWithSeries = 64;
inline constexpr std::string_view kOtherSeries = "(other)";

struct ClusterSeries {
  std::vector<std::shared_ptr<const JobObject>> jobs;
  std::vector<std::shared_ptr<const QueueObject>> queues;
  std::vector<std::shared_ptr<const kube::Node>> nodes;
  std::string gpu_resource;    // Config::gpu_resource
  std::string gpu_type_label;  // Config::gpu_type_label
  WallTime now{};
};
void expose(const ClusterSeries& cluster, Exposition& out);

// GPUs of its allocation.
std::int32_t held(const api::TrainingJob& job);

// All words of status.state.
const std::vector<std::string_view>& job_states();

}  // namespace rubato::control
