// TorchReplica: the Replica of a job whose gradients and optimizer are a PyTorch script's. The sum
// of the gradients is the exact one (worker/model/exact_sum.h), the samples of a step are those of
// the builtin trainer's sampler, and state, comparisons and checkpoints are bytes.
//
// A weighted loss (tokens, say) is exact, too: the weights of the micro-batches are integers, and
// are summed beside the gradients. The step's gradient is sum(gradient) / sum(weight).
#pragma once

#include "worker/pytorch/torch_program.h"
#include "worker/step/model_replica.h"

namespace rubato::worker {

// Losses are summed as integers of this size. That of a micro-batch may be any f32: large ones,
// with which a step's sum could reach 2^33, are summed beside the gradients; under numerics before
// version 3 they count as not finite. So does a validation's sum that large.
constexpr double kLossQuantum = 1.0 / (std::int64_t{1} << 30);

// Waits for the script to build its model: seconds. Errors as of make_model_replica(), and what the
// script says. `program` outlives the replica.
Result<std::unique_ptr<Replica>> make_torch_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options,
                                                    TorchProgram& program);

}  // namespace rubato::worker
