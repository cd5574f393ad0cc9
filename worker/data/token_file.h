// Token files: the text of a job as integers, memory-mapped. Our own format is a 64-byte header and
// then the tokens, little-endian:
//   0  char[8]  "RUBTOK1\n"
//   8  u32      version (1)
//   12 u32      bytes per token: 1, 2 or 4
//   16 u64      tokens
//   24 u64      vocabulary: every token is below it
//   32 u64      digest of the token bytes, so that "the same data" can be checked when joining
//   40 u8[24]   zero
// Files of llm.c (256 int32; magic 20240520 with 2-byte or 20240801 with 4-byte tokens) are read
// too.
//
// A mapped file is immutable and may be read by any thread. Reading costs page faults only.
#pragma once

#include "common/result.h"
#include "worker/data/mapped_file.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace rubato::worker {

class TokenFile {
 public:
  // kNotFound, kInvalid (what is wrong with the header, or the size does not match). The digest is
  // trusted; verify() reads the file to check it.
  static Result<TokenFile> open(const std::string& path);

  std::uint64_t count() const { return count_; }
  std::uint64_t vocabulary() const { return vocabulary_; }
  int bytes_per_token() const { return width_; }
  // Of the token bytes. For llm.c files it is computed by open().
  std::uint64_t digest() const { return digest_; }
  Status verify() const;

  // Tokens [first, first + out.size()) ; the range must lie in the file. kInvalid: a token is not
  // below the vocabulary (the file is damaged).
  Status read(std::uint64_t first, std::span<std::int32_t> out) const;

 private:
  TokenFile() = default;
  std::shared_ptr<const MappedFile> mapping_;
  const unsigned char* tokens_ = nullptr;
  std::uint64_t count_ = 0;
  std::uint64_t vocabulary_ = 0;
  std::uint64_t digest_ = 0;
  int width_ = 0;
};

// Writes a token file step by step: bytes go to `path`.tmp, finish() writes the header, syncs and
// renames. Without finish() nothing appears under `path`.
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(const std::string& path, std::uint64_t vocabulary);
  TokenFileWriter(TokenFileWriter&&) noexcept;
  TokenFileWriter& operator=(TokenFileWriter&&) noexcept;
  ~TokenFileWriter();

  Status append(std::span<const std::int32_t> tokens);  // kInvalid: not below the vocabulary
  Status finish();
  std::uint64_t count() const;

 private:
  TokenFileWriter();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
