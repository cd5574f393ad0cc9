// The safetensors format: u64 header length, JSON header {"name": {dtype, shape, data_offsets}},
// then the bytes. The header is bounded (kHeaderBytesMax) and checked in full before any tensor is
// touched: offsets in order, without holes or overlap, sizes that match shape and dtype, nothing
// behind the last byte.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

struct TensorView {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I32", …
  std::vector<std::int64_t> shape;
  const void* bytes = nullptr;
  std::uint64_t size = 0;  // in bytes
};

// A memory-mapped file. Immutable; any thread.
class Safetensors {
 public:
  static constexpr std::uint64_t kHeaderBytesMax = 32u << 20;
  static Result<Safetensors> open(const std::string& path);
  // The same checks on bytes in memory, which must outlive the object.
  static Result<Safetensors> parse(std::span<const unsigned char> bytes);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in order of the bytes
  const TensorView* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Safetensors() = default;
  std::shared_ptr<const void> mapping_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes the tensors in the given order (sorted by the caller if it matters) and syncs the file.
// Views whose size does not match dtype and shape are a broken invariant.
Status write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace rubato::worker
