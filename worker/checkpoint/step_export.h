// StepExport: the step records of a run in one file beside its checkpoints, record r at byte
// r.step * 32, so that writing a step again writes equal bytes. Where other bytes stand, the
// lineage that wrote them is not ours: they are kept, under another name, and said to differ.
// Thread: one. May block for as long as the disk takes.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/checkpoint/step_record.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace rubato::worker {

constexpr std::uint64_t kDivergedKept = 3;  // files set aside; older ones go

class StepExport {
 public:
  // The file is made by the first write; its directory, too.
  StepExport(FileSystem& files, std::string path);
  // Records in order of their steps, without holes. kConflict names the first step whose record
  // differed; the file was set aside as "<path>.diverged-<n>", and what was asked for is done.
  Status write(std::span<const StepRecord> records);

 private:
  Result<std::optional<std::uint64_t>> first_difference(std::span<const StepRecord> records);
  Result<std::string> set_aside(std::uint64_t first_other);
  Status copy_head(const std::string& to, std::uint64_t bytes);
  FileSystem& files_;
  std::string path_;
};

}  // namespace rubato::worker
