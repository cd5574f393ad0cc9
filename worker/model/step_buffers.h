// StepBuffers: what a replica computes a step's gradient in, beside ExactSum's accumulators.
// Private to replicas.
#pragma once

#include "worker/model/exact_sum.h"

namespace rubato::worker {

struct StepBuffers {
  Arena arena;
  Buffer gradient;  // f32: of one micro-batch, then the mean of the step
  Buffer reduced;   // i32: the sum over all members

  // All zero, and `sum` cleared; `flat_count`: of the table of parameters. kExhausted: no memory.
  static Result<StepBuffers> create(Device& device, Stream& stream, ExactSum& sum,
                                    std::int64_t flat_count);
};

}  // namespace rubato::worker
