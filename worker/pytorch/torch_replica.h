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

// Losses are summed as integers of this size; the sum of a step stays below 2^33.
constexpr double kLossQuantum = 1.0 / (std::int64_t{1} << 30);

// Waits for the script to build its model: seconds. Errors as of make_model_replica(), and what the
// script says. `program` outlives the replica.
Result<std::unique_ptr<Replica>> make_torch_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options,
                                                    TorchProgram& program);

}  // namespace rubato::worker
