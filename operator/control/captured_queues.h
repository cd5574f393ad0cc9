// CapturedQueues: TrainingQueues as the scheduler knows them, and which of them a job is in. Part
// of capture().
#pragma once

#include "operator/control/objects.h"
#include "scheduler/model/cluster_state.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rubato::control {

class CapturedQueues {
 public:
  explicit CapturedQueues(const std::vector<std::shared_ptr<const QueueObject>>& objects);

  // The queue that it names, or, where each namespace has its own limits there, what its namespace
  // may hold of that.
  std::string queue_of(const api::TrainingJob& job) const;
  // Why the queue that it names does not take it; "": it does.
  std::string why_not_admitted(const api::TrainingJob& job) const;
  // All by name, those of the jobs' namespaces included.
  std::map<std::string, sched::Queue> with_jobs(
      const std::vector<std::shared_ptr<const JobObject>>& jobs) const;

 private:
  std::map<std::string, std::shared_ptr<const QueueObject>> objects_;
};

}  // namespace rubato::control
