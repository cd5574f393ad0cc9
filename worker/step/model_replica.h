// ModelReplica: the real Replica: a model on a device, its training state, the exact sum, AdamW,
// the token file and the checkpoint store, put together for one job.
#pragma once

#include "common/files.h"
#include "worker/plan/memory_plan.h"
#include "worker/step/replica.h"
#include "worker/step/sample_ledger.h"
#include "worker/step/training_config.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace rubato::worker {

struct ReplicaOptions {
  FileSystem& files;         // outlives the replica
  std::string job_uid = {};  // whose checkpoints are ours; empty: nobody's are another's
  // The fingerprint that the job is pinned to; empty: none yet. It names the instruction set: a
  // better machine steps down to the job's. Without it, that of the job's newest checkpoint.
  std::string pinned = {};
  // Version of the numerics to which the job is pinned (worker/model/numerics.h). 0: none yet; then
  // it is that of the newest checkpoint, or of new jobs. One that this program does not know counts
  // as 0: the fingerprint will differ, and the job's other members refuse this one by it.
  int numerics = 0;
  std::string training = {};       // spec.training as it came, for a script (runtime pytorch)
  SampleLedger* ledger = nullptr;  // may be null; outlives the replica
  std::string device = "cpu";      // DeviceSpec::kind
  // A simulation gives a device and a model of its own.
  std::function<Result<std::unique_ptr<Device>>(const DeviceSpec&)> open_device =
      rubato::worker::open_device;
  MakeModel make_model = rubato::worker::make_model;
};

// kNotFound: the data; kInvalid: a field, or data that do not fit it; kExhausted: memory;
// kConflict: other jobs' checkpoints in checkpoint.path. A device that cannot be opened has the
// code of open_device(). The reason() of the error is a word for people: "DataNotFound",
// "DataUnreadable", "DataInvalid", "DataDamaged", "DeviceUnavailable", "OutOfMemory",
// "BadTraining", "CheckpointPathTaken". Without one, kUnavailable and kDenied: the newest
// checkpoint, which pins the arithmetic, cannot be read now; trying again may help. What cannot fit
// is refused before anything is taken (memory_check.h).
Result<std::unique_ptr<Replica>> make_model_replica(const TrainingConfig& config,
                                                    const ReplicaOptions& options);

}  // namespace rubato::worker
