// TrainingJob: one elastic training run (short name tj).
#pragma once

#include "operator/api/job_spec.h"
#include "operator/api/job_status.h"
#include "operator/api/object_meta.h"

#include <set>
#include <string>

namespace rubato::api {

struct TrainingJob {
  ObjectMeta meta;
  TrainingJobSpec spec;
  TrainingJobStatus status;
  // The first member of spec that cannot be read, by its path; "" when none. All that cannot be
  // have their defaults: the job is there, to be told of it, suspended or deleted.
  std::string unreadable;
  std::set<std::string> unreadable_members;  // of spec, by name
};

// A spec may come of another release, or say a date as only Kubernetes understands it. The status
// is the operator's own: kInvalid names the path of the member that cannot be read.
Result<TrainingJob> decode_training_job(const json::Value& object);

}  // namespace rubato::api
