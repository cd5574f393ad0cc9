#include "worker/checkpoint/file_writer.h"

#include "common/planted.h"

#include <algorithm>
#include <utility>

namespace rubato::worker {

namespace {
constexpr std::size_t kPieceBytes = 1u << 20;  // of a digest, and of a write
}  // namespace

Result<FileWriter> FileWriter::create(FileSystem& files, const std::string& path) {
  FileWriter writer;
  TRY(writer.file_, files.open(path, OpenMode::kCreate));
  writer.pending_.reserve(kPieceBytes);
  return writer;
}

Status FileWriter::append(const void* bytes, std::uint64_t size) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (size > 0) {
    const auto part = std::min<std::uint64_t>(size, kPieceBytes - pending_.size());
    pending_.insert(pending_.end(), from, from + part);
    from += part;
    size -= part;
    if (pending_.size() == kPieceBytes) TRY_OK(flush());
  }
  return ok();
}

Status FileWriter::flush() {
  digest_.add(pending_.data(), pending_.size());
  TRY_OK(file_->write_at(at_, pending_));
  at_ += pending_.size();
  pending_.clear();
  return ok();
}

Result<std::uint64_t> FileWriter::finish() {
  if (!pending_.empty()) TRY_OK(flush());
  if (!planted(Bug::kUnsynced)) TRY_OK(file_->sync());
  return digest_.value();
}

Result<std::uint64_t> write_file(FileSystem& files, const std::string& path, const void* bytes,
                                 std::size_t size) {
  TRY(FileWriter file, FileWriter::create(files, path));
  TRY_OK(file.append(bytes, size));
  return file.finish();
}

Result<std::uint64_t> digest_of_file(FileSystem& files, const std::string& path) {
  TRY(const auto file, files.open(path, OpenMode::kRead));
  std::vector<std::byte> piece(kPieceBytes);
  Digest digest;
  for (std::uint64_t at = 0;; at += kPieceBytes) {
    TRY(const std::size_t got, file->read_at(at, piece));
    if (got > 0) digest.add(piece.data(), got);
    if (got < kPieceBytes) return digest.value();
  }
}

}  // namespace rubato::worker
