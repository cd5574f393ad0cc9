// Checkpoints that any number of workers can resume, and that Hugging Face transformers loads:
//   <dir>/step-00000500/model.safetensors      parameters, Hugging Face's names and shapes
//                       config.json            of the model, as transformers reads it
//                       optimizer.safetensors  exp_avg.*, exp_avg_sq.*, exponents
//                       steps.bin              the step records
//                       run.json               CheckpointInfo; the digests of the other files
//   <dir>/LATEST                               the name of the newest, for people and scripts
// Written into a hidden directory of the writer's own, synced, renamed: what has its name is
// complete, and the highest step is the newest. A crash or a power cut at any point leaves the
// previous checkpoint whole. One writer per run; one that was frozen and comes back late does no
// harm: its checkpoint stands beside newer ones, and goes with the old. Readers at any time.
//
// A directory belongs to one job: neither loads nor saves touch another's checkpoints. Of jobs that
// begin on an empty one at once, whose first checkpoint is published first owns it.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/step_record.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"
#include "worker/model/training_state.h"

#include <cstdint>
#include <functional>
#include <map>
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
  std::string job_uid;  // whose; empty: nobody's (written before owners were)
  std::string fingerprint;
  std::uint64_t state_digest = 0;   // TrainingState::digest, filled by save, checked by load
  std::uint32_t redo_attempts = 0;  // of the next step, so far
  // Of a PyTorch job: what its script trains, in one line; `model`, `optimizer`, `init_from` and
  // `validation_fraction` say nothing then. Empty: the builtin trainer.
  std::string script;
  double validation_fraction = 0;
  std::string init_from;
  ModelConfig model;
  OptimizerConfig optimizer;
};

// Everything of the training spec that decides the numbers, and nothing that may change (when to
// stop, evaluate and save).
std::uint64_t training_hash(const CheckpointInfo& info);
// What keeps a checkpoint from being `ours` to go on from, in words for people; empty: nothing.
// Checkpoints of nobody are ours when they agree in what they say.
std::string difference(const CheckpointInfo& theirs, const CheckpointInfo& ours);
// Behind a fingerprint of the arithmetic: "/data=<digest>,<tokens>".
inline constexpr const char* kDataOfFingerprint = "/data=";
inline constexpr const char* kCheckpointPathTaken = "CheckpointPathTaken";
// The weights of training.model.initFrom are not there, damaged, or another model's.
inline constexpr const char* kInitFromUnusable = "InitFromUnusable";

struct Checkpoint {
  CheckpointInfo info;
  std::vector<StepRecord> records;
};

// Digests of files, by name.
using FileDigests = std::map<std::string, std::uint64_t>;

class CheckpointStore {
 public:
  // The `keep` >= 1 newest checkpoints survive a save, as does its own, and no draft of its step or
  // an older one.
  CheckpointStore(FileSystem& files, std::string directory, int keep);

  const CheckpointFolder& folder() const { return folder_; }

  // kConflict, "CheckpointPathTaken": a checkpoint in the directory is another job's, or of another
  // training than ours. The text names the difference and the ways out. What is damaged is
  // nobody's. kUnavailable, kDenied: one cannot be read, and none of the others is ours.
  Status check_owner(const CheckpointInfo& ours) const;

  // Waits for the stream, copies the state to the host and writes; blocks for as long as the disk
  // takes. `records` are those of the steps 0 .. info.step - 1. info.step and state_digest are
  // filled from the state. A checkpoint of the same step stays when it is whole and holds the same
  // state, or that of another attempt at the next step; else it is set aside. Errors of
  // check_owner(); kExhausted: the disk is full, also without such drafts (`write` was called twice
  // then, if there were any); kUnavailable. After an error nothing has changed but drafts, or the
  // new checkpoint stands and may not last. It is no error that old ones cannot be removed.
  Status save(Device& device, Stream& stream, const ParameterTable& table,
              const TrainingState& state, CheckpointInfo info,
              std::span<const StepRecord> records) const;
  // The same for a state of any other kind, whose step and digest are in `info`: `write` writes its
  // files into a directory, durably, and gives their digests.
  using WriteFiles = std::function<Result<FileDigests>(const std::string& directory)>;
  Status save(const CheckpointInfo& info, std::span<const StepRecord> records,
              const WriteFiles& write) const;

  // The path of the newest complete checkpoint; kNotFound when there is none.
  Result<std::string> latest() const;

 private:
  Status save_once(const CheckpointInfo& info, std::span<const StepRecord> records,
                   const WriteFiles& write) const;
  Status take_turn(const CheckpointInfo& info) const;
  Status publish(const std::string& draft, const CheckpointInfo& info) const;
  FileSystem& files_;
  CheckpointFolder folder_;
  int keep_;
};

// `path`: one checkpoint, or a directory of them (the newest is taken).
Result<CheckpointInfo> read_checkpoint_info(FileSystem& files, const std::string& path);
// All but the tensors, once every byte of every file was compared with what was written.
// "CheckpointDamaged": see CheckpointFolder. Compares no owner: difference() does.
Result<Checkpoint> verify_checkpoint(FileSystem& files, const std::string& directory);
// Fills the state (and its step). "CheckpointDamaged": see CheckpointFolder; kInvalid: tensors that
// do not fit the table. Compares no owner: difference() does.
Result<Checkpoint> load_checkpoint(FileSystem& files, const std::string& path, Device& device,
                                   Stream& stream, const ParameterTable& table,
                                   TrainingState& state);
// Where the weights lie that `path` means: of a checkpoint, of the newest in a directory of them,
// or else at the path itself. Those of a checkpoint have been compared with what was written.
// "CheckpointDamaged": they differ; the text says how to find a checkpoint that is whole.
// kUnavailable: the disk does not say what is there.
Result<std::string> weights_at(FileSystem& files, const std::string& path);
// Parameters alone, from where weights_at() found them: initFrom, evaluation, generation. kInvalid:
// the weights are of another model than `config`, or contradict themselves.
Status load_parameters(FileSystem& files, const std::string& path, const ModelConfig& config,
                       Device& device, Stream& stream, const ParameterTable& table,
                       Buffer parameters);

}  // namespace rubato::worker
