// What status says about a job, as a pure function of what is known: so that it can be tested as a
// table and never depends on which event came first.
#pragma once

#include "operator/api/training_job.h"
#include "operator/control/memory.h"
#include "operator/coordinator/coordinator.h"

#include <optional>
#include <string>
#include <vector>

namespace rubato::control {

struct JobFacts {
  const api::TrainingJob* job = nullptr;  // status as last written
  std::optional<coordinator::View> view;
  std::optional<JobVerdict> verdict;
  std::string profile;            // of what kind it is
  std::int32_t pods_running = 0;  // of the allocation
  // When this leader had the last of the pods made that came with the view's generation, once that
  // has taken its first step.
  std::optional<MonoTime> newest_pod_made;
  std::string start_problems;                          // why pods are not made, bound or started
  std::uint64_t own_failures = 0;                      // charged to maxRestarts
  std::vector<std::string> pods_left;                  // all that have not ended
  bool finishes_a_stop = false;                        // of a suspend that was taken back too late
  std::optional<coordinator::GpuSeconds> gpu_seconds;  // of the job's whole life
  std::string failed_reason;                           // not empty: the job failed for good
  std::string failed_message;
  bool is_tried = true;   // whether a pod of its spec may be made is known, or need not be
  std::string forbidden;  // why none may be made now
  std::optional<api::JobPriority> priority;  // that a pod was tried with
  std::string queued_reason;  // overrides the verdict: Requeued, GangTimeout, Preempted
  std::string queued_message;
  std::vector<api::AvoidedNode> avoided_nodes;
  WallTime now{};
};

// The parts of status that the job controller owns; allocation and membership as they are.
api::TrainingJobStatus status_of(const JobFacts& facts);

}  // namespace rubato::control
