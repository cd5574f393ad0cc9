#include "worker/checkpoint/step_record.h"

#include <bit>

namespace rubato::worker {

double StepRecord::loss() const { return std::bit_cast<double>(loss_bits); }

StepRecord make_step_record(std::int64_t step, double loss, std::uint64_t sample_digest,
                            double gradient_norm) {
  return {static_cast<std::uint64_t>(step), std::bit_cast<std::uint64_t>(loss), sample_digest,
          std::bit_cast<std::uint64_t>(gradient_norm)};
}

Result<std::vector<StepRecord>> read_step_records(FileSystem& files, const std::string& path) {
  TRY(const auto file, files.open(path, OpenMode::kRead));
  TRY(const std::uint64_t size, file->size());
  if (size % sizeof(StepRecord) != 0)
    return Error(Code::kInvalid, path + " is cut inside a record");
  std::vector<StepRecord> records(size / sizeof(StepRecord));
  TRY(const std::size_t got, file->read_at(0, std::as_writable_bytes(std::span(records))));
  if (got != size) return Error(Code::kInvalid, path + " was cut while it was read");
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records[i].step != i)
      return Error(Code::kInvalid, path + ": record " + std::to_string(i) + " is of step " +
                                       std::to_string(records[i].step));
  return records;
}

}  // namespace rubato::worker
