// The figures of a job's status: progress, speed, GPU time, rescales, restarts. Private to
// job_status. Pure.
#pragma once

#include "operator/control/job_status.h"

namespace rubato::control {

void put_figures(const JobFacts& facts, api::TrainingJobStatus& status);

}  // namespace rubato::control
