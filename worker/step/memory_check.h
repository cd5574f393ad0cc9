// Whether a job's replica can have the memory that it will take. Private to worker/step.
#pragma once

#include "worker/plan/memory_plan.h"
#include "worker/step/training_config.h"

namespace rubato::worker {

inline constexpr const char* kOutOfMemory = "OutOfMemory";

// Logs the plan of the memory (plan_memory()) in one sentence, where there is a limit. kExhausted,
// "OutOfMemory": the device has less than the replica certainly needs by itself, whatever else runs
// beside it; the text has the plan, the limit, and the largest micro-batch that would fit.
// "BadTraining": `make_model` refused; "DeviceUnavailable": the device does not say what it has.
Status check_memory(const TrainingConfig& config, int numerics, Device& device,
                    const MakeModel& make_model);

}  // namespace rubato::worker
