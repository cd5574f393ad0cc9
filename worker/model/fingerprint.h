// The numerics fingerprint of a job on a device: a hash of what its kernels really compute. One
// probe micro-batch with fixed weights and tokens runs forward, backward, reduction and one update
// at the job's shapes; the device's own fingerprint and the schedule's learning rates are added.
// Workers of one exact job must show the same one, else a joiner is refused.
#pragma once

#include "worker/model/model.h"
#include "worker/model/numerics.h"
#include "worker/model/optimizer.h"

#include <string>

namespace rubato::worker {

// "2-cpu/avx512_core/…-<16 hex digits>": the version of the numerics in use comes first. Costs
// about two micro-batches; allocates four times the parameters for its duration; touches no state
// of the job. kInvalid: a version that this program does not know.
Result<std::string> numerics_fingerprint(Device& device, Stream& stream, Model& model,
                                         const OptimizerConfig& optimizer,
                                         int numerics = kNumericsVersion);

}  // namespace rubato::worker
