// FileWriter: writes a new file from front to back and knows its digest. digest_of_file() reads one
// from front to back and finds the same.
// Thread: one.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/backend/digest.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

class FileWriter {
 public:
  // Takes the place of a file that was there.
  static Result<FileWriter> create(FileSystem& files, const std::string& path);
  Status append(const void* bytes, std::uint64_t size);
  // Writes the rest, and returns once the bytes are durable (the name is not). The digest of all.
  Result<std::uint64_t> finish();

 private:
  FileWriter() = default;
  Status flush();
  std::unique_ptr<File> file_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> pending_;  // up to one piece of the digest
  Digest digest_;
};

// A whole file at once; its digest.
Result<std::uint64_t> write_file(FileSystem& files, const std::string& path, const void* bytes,
                                 std::size_t size);

Result<std::uint64_t> digest_of_file(FileSystem& files, const std::string& path);

}  // namespace rubato::worker
