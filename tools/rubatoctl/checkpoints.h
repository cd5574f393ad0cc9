// rubatoctl checkpoint: what stands in a folder of checkpoints, whether it is whole, and what may
// go. Works on files alone; no cluster is asked. The texts are what the commands print. kNotFound:
// there is no such folder.
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <string>

namespace rubato::ctl {

// What was found. A checkpoint that a job removes meanwhile is left out.
struct CheckReport {
  std::string text;
  int damaged = 0;
  int unread = 0;  // the disk did not answer, or this user may not read them
};
// What is wrong with them, for the exit status; ok: nothing.
Status verdict(const CheckReport& report);

// `output`: "table" or "json". Checkpoints by step, then what was set aside or left behind. Reads
// all but the bytes of tensors: a file that is missing or cut short is damage, which is shown and
// not counted.
Result<CheckReport> list_checkpoints(FileSystem& files, const std::string& folder,
                                     const std::string& output);
// Reads every byte of all checkpoints, or of the one of `step` (-1: all). kNotFound: none.
Result<CheckReport> verify_checkpoints(FileSystem& files, const std::string& folder,
                                       std::int64_t step);

struct PruneOptions {
  int keep = 3;          // newest whole checkpoints stay; 0: none do
  bool damaged = false;  // those that are damaged, or were set aside, go too
  bool dry_run = false;
};
// Removes the checkpoints that are older than the `keep` newest whole ones, and what dead writers
// left behind. Reads every byte of those that stay. One that is damaged does not count, and stays
// without `damaged` where it is newer than they are.
Result<std::string> prune_checkpoints(FileSystem& files, const std::string& folder,
                                      const PruneOptions& options);

// They belong to no job any more: the next one that trains the same on this path goes on from them.
Result<std::string> release_checkpoints(FileSystem& files, const std::string& folder);

}  // namespace rubato::ctl
