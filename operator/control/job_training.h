// What of a job's spec its coordinator and its workers are told. Pure.
#pragma once

#include "operator/api/training_job.h"
#include "operator/coordinator/coordinator.h"

#include <cstdint>

namespace rubato::control {

// Whether a coordinator can be told how the job trains: what cannot be read of its spec is about
// when and where alone.
bool can_be_led(const api::TrainingJob& job);

// Sets training, stop_steps and micro_batches, or, of a program of its own, is_stateless.
void put_training(const api::TrainingJob& job, coordinator::Wish& wish);

// Tokens of one step; of a script, which alone knows them, the mean of those that it has told of,
// in what it counts. 0: it has told of none.
double tokens_of_a_step(const api::TrainingJob& job, std::int64_t steps_done,
                        std::int64_t tokens_done);

}  // namespace rubato::control
