#include "worker/checkpoint/step_record.h"

#include "worker/data/mapped_file.h"

#include <bit>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

double StepRecord::loss() const { return std::bit_cast<double>(loss_bits); }

StepRecord make_step_record(std::int64_t step, double loss, std::uint64_t sample_digest,
                            double gradient_norm) {
  return {static_cast<std::uint64_t>(step), std::bit_cast<std::uint64_t>(loss), sample_digest,
          std::bit_cast<std::uint64_t>(gradient_norm)};
}

Status export_step_records(const std::string& path, std::span<const StepRecord> records) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Error(Code::kUnavailable, "opening " + path + ": " + std::strerror(errno));
  Status done = ok();
  for (const StepRecord& record : records) {
    const auto at = static_cast<off_t>(record.step * sizeof record);
    if (pwrite(fd, &record, sizeof record, at) == static_cast<ssize_t>(sizeof record)) continue;
    done = Error(Code::kUnavailable, "writing " + path + ": " + std::strerror(errno));
    break;
  }
  close(fd);
  return done;
}

Result<std::vector<StepRecord>> read_step_records(const std::string& path) {
  TRY(const auto mapping, MappedFile::open(path));
  if (mapping->size() % sizeof(StepRecord) != 0)
    return Error(Code::kInvalid, path + " is cut inside a record");
  std::vector<StepRecord> records(mapping->size() / sizeof(StepRecord));
  if (!records.empty()) std::memcpy(records.data(), mapping->bytes(), mapping->size());
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records[i].step != i)
      return Error(Code::kInvalid, path + ": record " + std::to_string(i) + " is of step " +
                                       std::to_string(records[i].step));
  return records;
}

}  // namespace rubato::worker
