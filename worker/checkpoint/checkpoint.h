// Checkpoints that any number of workers can resume, and that Hugging Face transformers loads:
//   <dir>/step-00000500/model.safetensors      parameters, GPT-2's names and shapes
//                       config.json            of the model, as transformers reads it
//                       optimizer.safetensors  exp_avg.*, exp_avg_sq.*, exponents
//                       run.json               CheckpointInfo
//                       steps.bin              the step records
//   <dir>/LATEST                               the name of the newest, for people and scripts
// Written into a hidden directory of the writer's own, synced, renamed: what has its name is
// complete, and the highest step is the newest. A crash at any point leaves the previous
// checkpoint whole. One writer per run; one that was frozen and comes back late does no harm: its
// checkpoint stands beside newer ones, or goes with the old. Readers at any time.
#pragma once

#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/checkpoint/step_record.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rubato::worker {

// Everything but tensors. `step` committed steps are inside; `sequence` counts checkpoints of a
// run.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::int64_t sequence = 0;
  std::uint64_t seed = 0;
  std::uint64_t data_digest = 0;
  std::int64_t global_batch = 0;
  std::int64_t micro_batch = 0;
  int numerics_version = 0;
  std::string fingerprint;
  std::uint64_t state_digest = 0;  // TrainingState::digest, filled by save, checked by load
  ModelConfig model;
  OptimizerConfig optimizer;
};

struct Checkpoint {
  CheckpointInfo info;
  std::vector<StepRecord> records;
};

class CheckpointStore {
 public:
  // `keep` >= 1 newest checkpoints survive a save, and no draft of its step or an older one.
  CheckpointStore(std::string directory, int keep);

  // Waits for the stream, copies the state to the host and writes; blocks for as long as the disk
  // takes. `records` are those of the steps 0 .. info.step - 1. info.step, state_digest and
  // numerics_version are filled from the state. A checkpoint of the same step stays when it holds
  // the same state, else it is replaced.
  Status save(Device& device, Stream& stream, const ParameterTable& table,
              const TrainingState& state, CheckpointInfo info,
              std::span<const StepRecord> records) const;

  // The path of the newest complete checkpoint; kNotFound when there is none.
  Result<std::string> latest() const;
  // Steps of the complete checkpoints, ascending.
  std::vector<std::int64_t> steps() const;

 private:
  // From the draft to its name.
  Status publish(const std::string& draft, const CheckpointInfo& info) const;
  std::string directory_;
  int keep_;
};

// `path`: one checkpoint, or a directory with LATEST.
Result<CheckpointInfo> read_checkpoint_info(const std::string& path);
// Fills the state (and its step). kInvalid: damaged, or tensors that do not fit the table.
Result<Checkpoint> load_checkpoint(const std::string& path, Device& device, Stream& stream,
                                   const ParameterTable& table, TrainingState& state);
// Parameters alone, from a checkpoint or from any model.safetensors with GPT-2's names (with or
// without the "transformer." prefix): initFrom, evaluation, generation.
Status load_parameters(const std::string& path, Device& device, Stream& stream,
                       const ParameterTable& table, Buffer parameters);

}  // namespace rubato::worker
