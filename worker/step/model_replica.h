// ModelReplica: the real Replica: a model on a device, its training state, the exact sum, AdamW,
// the token file and the checkpoint store, put together for one job.
#pragma once

#include "worker/step/replica.h"
#include "worker/step/sample_ledger.h"
#include "worker/step/training_config.h"

#include <memory>
#include <string>

namespace rubato::worker {

struct ReplicaOptions {
  std::string isa = "auto";        // see DeviceSpec
  SampleLedger* ledger = nullptr;  // may be null; outlives the replica
};

// kNotFound: the data; kInvalid: a field, or data that do not fit it; kExhausted: memory. The
// reason() of the error is a word for people: "DataNotFound", "DataInvalid", "BadTraining".
Result<std::unique_ptr<Replica>> make_model_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options);

}  // namespace rubato::worker
