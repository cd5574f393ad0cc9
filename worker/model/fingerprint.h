// The numerics fingerprint of a job on a device: a hash of what its kernels really compute. One
// probe micro-batch with fixed weights and tokens runs forward, backward, reduction and one update
// at the job's shapes; the device's own fingerprint and the schedule's learning rates are added.
// Workers of one exact job must show the same one, else a joiner is refused.
#pragma once

#include "worker/model/exact_sum.h"
#include "worker/model/model.h"
#include "worker/model/numerics.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <string>

namespace rubato::worker {

// What the probe computes in: a state that is zero, and the numerics of `sum`. All of it but the
// optimizer's configuration is overwritten; afterwards the state and the sum are zero again.
struct ProbeMemory {
  TrainingState& state;
  ExactSum& sum;
  AdamW& optimizer;
  Buffer gradient;  // f32
};

// "3-cpu/avx512_core/…-<16 hex digits>": the version of the numerics in use comes first. Costs
// about two micro-batches, and takes no memory of the device.
Result<std::string> numerics_fingerprint(Device& device, Stream& stream, Model& model,
                                         const OptimizerConfig& optimizer,
                                         const ProbeMemory& memory);

// The same in memory of its own, five times the parameters. kInvalid: a version of the numerics
// that this program does not know; kExhausted: no memory.
Result<std::string> numerics_fingerprint(Device& device, Stream& stream, Model& model,
                                         const OptimizerConfig& optimizer,
                                         int numerics = kNumericsVersion);

}  // namespace rubato::worker
