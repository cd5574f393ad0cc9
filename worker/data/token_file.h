// Token files: the text of a job as integers. Our own format is a 64-byte header and then the
// tokens, little-endian:
//   0  char[8]  "RUBTOK1\n"
//   8  u32      version (1)
//   12 u32      bytes per token: 1, 2 or 4
//   16 u64      tokens
//   24 u64      vocabulary: every token is below it
//   32 u64      digest of the token bytes, so that "the same data" can be checked when joining
//   40 u8[24]   zero
// Files of llm.c (256 int32; magic 20240520 with 2-byte or 20240801 with 4-byte tokens) are read
// too, and Megatron-LM's (NAME.bin where NAME.idx is beside it; megatron_index.h), whose vocabulary
// is that of the largest token.
//
// What training reads is what was there at open(): open() reads the whole file once and keeps a
// digest of each block of kTokenBlockBytes; read() reads whole blocks and compares. A file that is
// copied, cut or damaged under a running job gives an error, never other tokens.
//
// Thread: one thread at a time.
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr std::size_t kTokenBlockBytes = 16u << 10;

// An error of the disk that data are on, with its reason(): "DataNotFound", "DataUnreadable".
Error unreadable_data(const Error& error);

// `path`, or where it is a folder the one token file in it, known by its first bytes, or as
// Megatron-LM's by the NAME.idx beside NAME.bin. Folders in it are not looked into. kNotFound,
// "DataNotFound": none, or several; else as unreadable_data(). What is damaged is found, too:
// open() says what is wrong with it.
Result<std::string> find_token_file(FileSystem& files, const std::string& path);

class TokenFile {
 public:
  // kNotFound, kUnavailable (the disk), kInvalid. The error's reason(): "DataNotFound",
  // "DataUnreadable", "DataInvalid" (no token file, or one of llm.c with a token that its
  // vocabulary has not), "DataDamaged" (not as many tokens as the
  // header says, or others: half copied, or a flipped bit). Reads every byte.
  static Result<TokenFile> open(FileSystem& files, const std::string& path);

  std::uint64_t count() const { return count_; }
  std::uint64_t vocabulary() const { return vocabulary_; }
  int bytes_per_token() const { return width_; }
  std::uint64_t digest() const { return digest_; }  // of the token bytes, as read by open()

  // Tokens [first, first + out.size()) ; the range must lie in the file. kInvalid, "DataDamaged":
  // the file is not the one that was opened, or a token is not below the vocabulary. kUnavailable,
  // "DataUnreadable": the disk.
  Status read(std::uint64_t first, std::span<std::int32_t> out) const;

 private:
  TokenFile() = default;
  Status parse_header(std::uint64_t size);
  Status parse_index(FileSystem& files, const std::string& index);
  Status digest_blocks();
  Status read_bytes(std::uint64_t at, std::span<std::byte> to) const;
  std::string path_;
  std::unique_ptr<File> file_;
  std::uint64_t header_bytes_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t vocabulary_ = 0;
  std::uint64_t digest_ = 0;
  bool has_digest_ = false;     // the header says one
  bool has_vocabulary_ = true;  // the header says one
  int width_ = 0;
  std::vector<std::uint64_t> blocks_;  // a digest each
};

// Writes a token file step by step: bytes go to `path`.tmp, finish() writes the header, syncs and
// renames, and syncs the name. Without finish() nothing appears under `path`.
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(FileSystem& files, const std::string& path,
                                        std::uint64_t vocabulary);
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
