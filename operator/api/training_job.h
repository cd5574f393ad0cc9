// TrainingJob: one elastic training run (short name tj).
#pragma once

#include "operator/api/job_spec.h"
#include "operator/api/job_status.h"
#include "operator/api/object_meta.h"

namespace rubato::api {

struct TrainingJob {
  ObjectMeta meta;
  TrainingJobSpec spec;
  TrainingJobStatus status;
};

// kInvalid names the path of the member that cannot be read.
Result<TrainingJob> decode_training_job(const json::Value& object);

}  // namespace rubato::api
