// StoredReplica: what every replica with a folder of checkpoints does alike, whatever its state is
// made of. Private to replicas.
#pragma once

#include "worker/checkpoint/checkpoint.h"
#include "worker/step/replica.h"

#include <optional>
#include <string>
#include <vector>

namespace rubato::worker {

// What the checkpoint of a listed step says of itself. kInvalid: it is damaged; kUnavailable: the
// disk does not answer, or it has gone since it was listed, and another may have come; kDenied.
Result<CheckpointInfo> info_of_listed(FileSystem& files, const CheckpointFolder& folder,
                                      std::int64_t step);

// The version of the numerics to compute under: `pinned` (ReplicaOptions::numerics) where this
// program knows it, else that of the newest checkpoint in `path` that can be read, else that of new
// jobs. What is damaged says nothing. kUnavailable, kDenied: as above; nothing is known then, and
// it is asked again.
Result<int> numerics_of(FileSystem& files, const std::string& path, int pinned);

class StoredReplica : public Replica {
 public:
  Result<std::vector<std::uint64_t>> checkpoints() const override;
  Result<FoundCheckpoint> look_at_checkpoint(std::uint64_t step) const override;
  Result<std::string> set_aside_checkpoint(std::uint64_t step) override;
  Result<std::vector<std::string>> damaged_checkpoints() const override;
  // "CheckpointPathTaken" alone: a disk that does not answer says nothing of owners, and loads and
  // saves ask again.
  Status check_path() const;

 protected:
  // An empty path: the job has no checkpoints.
  StoredReplica(FileSystem& files, const std::string& path, int keep);
  // What a checkpoint of the present state says of itself.
  virtual CheckpointInfo info() const = 0;
  // Of the checkpoint of this step, if it is ours: errors of CheckpointStore::check_owner();
  // kNotFound: the job has none.
  Result<std::string> own_path(std::uint64_t step) const;
  // Null: the job has no checkpoints.
  const CheckpointStore* store() const { return store_ ? &*store_ : nullptr; }

 private:
  std::optional<CheckpointStore> store_;
};

}  // namespace rubato::worker
