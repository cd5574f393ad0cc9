// A file mapped read-only. Immutable; any thread.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <memory>
#include <string>

namespace rubato::worker {

class MappedFile {
 public:
  // kNotFound, or kUnavailable with the system's words. An empty file maps to zero bytes.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* bytes() const { return bytes_; }
  std::uint64_t size() const { return size_; }

 private:
  MappedFile(const unsigned char* bytes, std::uint64_t size) : bytes_(bytes), size_(size) {}
  const unsigned char* bytes_;
  std::uint64_t size_;
};

}  // namespace rubato::worker
