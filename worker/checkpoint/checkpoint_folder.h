// CheckpointFolder: a directory of checkpoints as files: which stand there, whether they are whole,
// which may go. It needs no device, so tools use it as workers do.
//   <dir>/step-00000500/           complete and durable, or it had not this name
//   <dir>/.draft-step-00000500-…   being written, or left by a crash
//   <dir>/.damaged-step-00000500-1 set aside: its bytes were not those that were written
//   <dir>/LATEST                   the name of the newest, for people and scripts
//
// Errors: "CheckpointDamaged" (reason(), kInvalid): the bytes are wrong, and stay wrong.
// kUnavailable: the disk does not answer, kDenied: it may not be read; nothing is known of the
// bytes.
//
// Thread: any; one writer for a directory, readers at any time.
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kDamagedKept = 3;  // checkpoints set aside; older ones go
inline constexpr const char* kCheckpointDamaged = "CheckpointDamaged";
Error damaged_checkpoint(const std::string& path, const std::string& why);

// What run.json says that concerns more than the worker.
struct CheckpointSummary {
  std::int64_t step = 0;
  std::string job_uid;  // whose; empty: written before checkpoints had owners
  std::string fingerprint;
  std::uint64_t state_digest = 0;
  std::uint32_t redo_attempts = 0;
  std::uint64_t bytes = 0;                     // of all files
  std::map<std::string, std::uint64_t> files;  // digests; empty: an older version wrote it
};

// Of one checkpoint, in its folder or copied out of it. What is called step-… must be of that step.
Result<CheckpointSummary> checkpoint_summary(FileSystem& files, const std::string& path);
// Reads every byte of the files that `asked` says yes to, by their names, and compares it with what
// was written.
Result<CheckpointSummary> verify_checkpoint_files(
    FileSystem& files, const std::string& path,
    const std::function<bool(std::string_view)>& asked = [](std::string_view) { return true; });

class CheckpointFolder {
 public:
  CheckpointFolder(FileSystem& files, std::string directory);

  const std::string& directory() const { return directory_; }
  std::string path_of(std::int64_t step) const;
  // Steps of the complete checkpoints, ascending; none when there is no such directory. A folder
  // whose name path_of() does not give (step-900) is none, nor is a file or a link to nothing.
  // Where one goes meanwhile they are listed anew: another may have come. kUnavailable: they go on
  // coming and going.
  Result<std::vector<std::int64_t>> steps() const;
  // Names in the directory, sorted.
  Result<std::vector<std::string>> drafts() const;
  Result<std::vector<std::string>> damaged() const;
  static std::int64_t step_of_draft(std::string_view name);  // -1: of none

  Result<CheckpointSummary> summary(std::int64_t step) const;
  Result<CheckpointSummary> verify(std::int64_t step) const;
  // Verifies all but the files of tensors: these are there, and as long as their headers say.
  Result<CheckpointSummary> inspect(std::int64_t step) const;

  // Out of the way of the others, and kept: its new name. At most kDamagedKept are. kNotFound:
  // somebody else did, or there is none.
  Result<std::string> set_aside(std::int64_t step) const;
  // Each loses its name first, so that none is ever half there.
  Status remove(std::span<const std::int64_t> steps) const;
  // A draft or a damaged one. A draft that is being written never becomes a checkpoint then.
  Status remove_entry(const std::string& name) const;
  // Leftovers of writers that died, of `step` and older ones: all that can be removed.
  Status remove_drafts(std::int64_t step) const;
  // A checkpoint without an owner belongs to the next job that goes on from it.
  // "CheckpointDamaged": run.json is not what was written.
  Status release(std::int64_t step) const;
  // Of the checkpoint in a draft.
  std::string path_in_draft(const std::string& name) const;
  // An empty directory for a checkpoint that is being written. Its parent goes with it.
  Result<std::string> make_draft(std::int64_t step) const;
  // A draft becomes the checkpoint of `step`. All in it must be synced. kAlreadyExists: one stands
  // there; kNotFound: the draft was removed.
  Status publish(const std::string& draft, std::int64_t step) const;
  // What publish() does after its rename, for a checkpoint where that failed.
  Status make_names_durable() const;

 private:
  Status point_latest() const;
  Result<std::vector<std::string>> names_with(std::string_view prefix) const;
  FileSystem& files_;
  std::string directory_;
};

// The text of run.json with its own digest in it: `text` has the member "digest" with sixteen zeros
// (kBlankDigest).
inline constexpr const char* kBlankDigest = "0000000000000000";
std::string sealed(std::string text);

}  // namespace rubato::worker
