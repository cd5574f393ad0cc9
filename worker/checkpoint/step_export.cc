#include "worker/checkpoint/step_export.h"

#include "worker/checkpoint/file_writer.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace rubato::worker {

namespace {
constexpr std::size_t kPieceRecords = 1u << 15;  // 1 MiB

// The number behind "<file>.diverged-"; 0 for any other name.
std::uint64_t number_behind(std::string_view prefix, std::string_view name) {
  std::uint64_t number = 0;
  if (!name.starts_with(prefix)) return 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end ? number : 0;
}
}  // namespace

StepExport::StepExport(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)) {}

Status StepExport::write(std::span<const StepRecord> records) {
  if (records.empty()) return ok();
  TRY_OK(make_lasting_directories(files_, parent_of(path_)));
  TRY(const auto other, first_difference(records));
  std::string aside;
  if (other) {
    TRY(aside, set_aside(*other));
  }
  TRY(const auto file, files_.open(path_, OpenMode::kUpdate));
  TRY_OK(file->write_at(records.front().step * sizeof(StepRecord), std::as_bytes(records)));
  if (!other) return ok();
  return Error(Code::kConflict, path_ + ": step " + std::to_string(*other + 1) +
                                    " stood there with another record than this run's; the old "
                                    "file is kept as " +
                                    aside);
}

// The step of the first record that stands there and is another. A hole is no record.
Result<std::optional<std::uint64_t>> StepExport::first_difference(
    std::span<const StepRecord> records) {
  const auto file = files_.open(path_, OpenMode::kRead);
  if (!file.ok() && file.error().code() == Code::kNotFound) return std::optional<std::uint64_t>();
  if (!file.ok()) return file.error();
  std::vector<StepRecord> piece;
  while (!records.empty()) {
    piece.assign(std::min(records.size(), kPieceRecords), {});
    TRY(const std::size_t got, (*file)->read_at(records.front().step * sizeof(StepRecord),
                                                std::as_writable_bytes(std::span(piece))));
    piece.resize(got / sizeof(StepRecord));
    for (std::size_t i = 0; i < piece.size(); ++i)
      if (piece[i] != StepRecord{} && piece[i] != records[i]) return std::optional(records[i].step);
    records = records.subspan(std::min(records.size(), kPieceRecords));
  }
  return std::optional<std::uint64_t>();
}

// What stands before `first_other` is ours, too, and stays.
Result<std::string> StepExport::set_aside(std::uint64_t first_other) {
  const std::string folder = parent_of(path_);
  const std::string file = path_.substr(path_.find_last_of('/') + 1);
  const std::string prefix = file + ".diverged-";
  TRY(const auto names, files_.list(folder));
  std::uint64_t newest = 0;
  for (const std::string& name : names) newest = std::max(newest, number_behind(prefix, name));
  const std::string head = path_ + ".tmp";
  TRY_OK(copy_head(head, first_other * sizeof(StepRecord)));
  const std::string aside = prefix + std::to_string(newest + 1);
  TRY_OK(files_.rename(path_, folder + "/" + aside));
  TRY_OK(files_.rename(head, path_));
  TRY_OK(files_.sync_directory(folder));
  for (const std::string& name : names) {
    const std::uint64_t number = number_behind(prefix, name);
    if (number > 0 && number + kDivergedKept <= newest + 1)
      TRY_OK(files_.remove_all(folder + "/" + name));
  }
  return aside;
}

Status StepExport::copy_head(const std::string& to, std::uint64_t bytes) {
  TRY(const auto from, files_.open(path_, OpenMode::kRead));
  TRY(FileWriter copy, FileWriter::create(files_, to));
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < bytes; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(bytes - at, kPieceRecords * sizeof(StepRecord)));
    TRY(const std::size_t got, from->read_at(at, piece));
    if (got < piece.size()) return Error(Code::kInvalid, path_ + " was cut while it was read");
    TRY_OK(copy.append(piece.data(), piece.size()));
  }
  TRY_OK(copy.finish());
  return ok();
}

}  // namespace rubato::worker
