// What is remembered of each committed step. Records are replicated state: sent to newcomers, kept
// in checkpoints, and exported (step_export.h).
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::worker {

struct StepRecord {
  std::uint64_t step = 0;
  std::uint64_t loss_bits = 0;      // the double, as bits
  std::uint64_t sample_digest = 0;  // Sampler::step_digest of the samples really used
  std::uint64_t gradient_norm = 0;  // the double, as bits
  bool operator==(const StepRecord&) const = default;
  double loss() const;
};
static_assert(sizeof(StepRecord) == 32);

StepRecord make_step_record(std::int64_t step, double loss, std::uint64_t sample_digest,
                            double gradient_norm);

// All records of a file; kInvalid when record i is not of step i.
Result<std::vector<StepRecord>> read_step_records(FileSystem& files, const std::string& path);

}  // namespace rubato::worker
