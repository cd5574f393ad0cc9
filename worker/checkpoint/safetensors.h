// The safetensors format: u64 header length, JSON header {"name": {dtype, shape, data_offsets}},
// then the bytes. The header is bounded (kHeaderBytesMax) and checked in full before any tensor is
// touched: each name once, offsets in order, without holes or overlap, sizes that match shape and
// dtype, nothing behind the last byte.
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// A tensor to be written.
struct TensorView {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I32", …
  std::vector<std::int64_t> shape;
  const void* bytes = nullptr;
  std::uint64_t size = 0;  // in bytes
};

// A tensor of a file.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t size = 0;    // in bytes
};

// An open file. Thread: one.
class Safetensors {
 public:
  static constexpr std::uint64_t kHeaderBytesMax = 32u << 20;
  // kInvalid says what is wrong with the header; else the file's own errors.
  static Result<Safetensors> open(FileSystem& files, const std::string& path);
  static Result<Safetensors> open(std::unique_ptr<File> file, const std::string& path);

  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const TensorEntry* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Its bytes; `to` is as large as the tensor.
  Status read(const TensorEntry& tensor, std::span<std::byte> to) const;

 private:
  Safetensors() = default;
  Status parse(std::string_view header, std::uint64_t file_bytes);
  std::string path_;
  std::unique_ptr<File> file_;
  std::vector<TensorEntry> tensors_;  // in the order of their bytes
  std::map<std::string, std::string> metadata_;
};

// Writes the tensors in the given order (sorted by the caller if it matters), syncs the file, and
// gives its digest (digest_of_file). Views whose size does not match dtype and shape are a broken
// invariant.
Result<std::uint64_t> write_safetensors(FileSystem& files, const std::string& path,
                                        const std::vector<TensorView>& tensors,
                                        const std::map<std::string, std::string>& metadata);

}  // namespace rubato::worker
