#include "worker/data/token_file.h"

#include "worker/backend/digest.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

namespace {

constexpr char kMagic[8] = {'R', 'U', 'B', 'T', 'O', 'K', '1', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kVocabularyMax = 1u << 22;
// The digest is taken over pieces of this size, so that a writer can make it as it goes.
constexpr std::size_t kDigestPiece = 1u << 20;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t width;
  std::uint64_t count;
  std::uint64_t vocabulary;
  std::uint64_t digest;
  std::uint8_t zero[24];
};
static_assert(sizeof(Header) == 64);

constexpr std::size_t kLlmcHeaderBytes = 1024;
constexpr std::int32_t kLlmcGpt2 = 20240520;
constexpr std::int32_t kLlmcLlama3 = 20240801;

std::uint64_t digest_in_pieces(const unsigned char* bytes, std::uint64_t size) {
  Digest digest;
  for (std::uint64_t at = 0; at < size; at += kDigestPiece)
    digest.add(bytes + at, std::min<std::uint64_t>(kDigestPiece, size - at));
  return digest.value();
}

Error system_error(const std::string& what) {
  return Error(Code::kUnavailable, what + ": " + std::strerror(errno));
}

Status write_all(int fd, const void* from, std::size_t size, const std::string& path) {
  const auto* at = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error("writing " + path);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return ok();
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& path) {
  TRY(auto mapping, MappedFile::open(path));
  const auto invalid = [&](const std::string& why) {
    return Error(Code::kInvalid, path + " is not a token file: " + why);
  };
  const std::uint64_t size = mapping->size();
  TokenFile file;
  file.mapping_ = mapping;
  std::uint64_t header_bytes = 0;

  Header header;
  std::int32_t llmc[3];
  if (size < sizeof header) return invalid("only " + std::to_string(size) + " bytes");
  std::memcpy(&header, mapping->bytes(), sizeof header);
  std::memcpy(llmc, mapping->bytes(), sizeof llmc);
  const bool is_ours = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0;
  if (is_ours) {
    if (header.version != kVersion) return invalid("version " + std::to_string(header.version));
    if (header.width != 1 && header.width != 2 && header.width != 4)
      return invalid(std::to_string(header.width) + " bytes per token");
    if (header.vocabulary == 0 || header.vocabulary > kVocabularyMax)
      return invalid("a vocabulary of " + std::to_string(header.vocabulary));
    file.width_ = static_cast<int>(header.width);
    file.count_ = header.count;
    file.vocabulary_ = header.vocabulary;
    file.digest_ = header.digest;
    header_bytes = sizeof header;
  } else if (llmc[0] == kLlmcGpt2 || llmc[0] == kLlmcLlama3) {
    if (size < kLlmcHeaderBytes || llmc[2] < 0) return invalid("llm.c header cut short");
    file.width_ = llmc[0] == kLlmcGpt2 ? 2 : 4;
    file.count_ = static_cast<std::uint64_t>(llmc[2]);
    file.vocabulary_ = llmc[0] == kLlmcGpt2 ? 50257 : 128256;
    header_bytes = kLlmcHeaderBytes;
  } else {
    return invalid("neither our magic nor llm.c's");
  }
  const std::uint64_t body = size - header_bytes;
  if (body % static_cast<std::uint64_t>(file.width_) != 0 ||
      file.count_ != body / static_cast<std::uint64_t>(file.width_))
    return invalid("the header says " + std::to_string(file.count_) + " tokens, the file has " +
                   std::to_string(body) + " bytes of them");
  file.tokens_ = mapping->bytes() + header_bytes;
  if (!is_ours) file.digest_ = digest_in_pieces(file.tokens_, body);
  return file;
}

Status TokenFile::verify() const {
  const std::uint64_t size = count_ * static_cast<std::uint64_t>(width_);
  if (digest_in_pieces(tokens_, size) == digest_) return ok();
  return Error(Code::kInvalid, "the tokens do not match the digest in the header");
}

Status TokenFile::read(std::uint64_t first, std::span<std::int32_t> out) const {
  CHECK(first <= count_ && out.size() <= count_ - first);
  const unsigned char* from = tokens_ + first * static_cast<std::uint64_t>(width_);
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t token = 0;  // little-endian, like every machine we run on
    std::memcpy(&token, from + i * static_cast<std::size_t>(width_),
                static_cast<std::size_t>(width_));
    highest = std::max(highest, token);
    out[i] = static_cast<std::int32_t>(token);
  }
  if (highest < vocabulary_) return ok();
  return Error(Code::kInvalid, "token " + std::to_string(highest) + " near place " +
                                   std::to_string(first) + " is outside the vocabulary of " +
                                   std::to_string(vocabulary_));
}

struct TokenFileWriter::Impl {
  std::string path;
  int fd = -1;
  std::uint64_t vocabulary = 0;
  std::uint64_t count = 0;
  int width = 0;
  Digest digest;
  std::vector<unsigned char> pending;  // up to one digest piece

  ~Impl() {
    if (fd < 0) return;
    close(fd);
    unlink((path + ".tmp").c_str());
  }
  Status flush() {
    if (pending.empty()) return ok();
    digest.add(pending.data(), pending.size());
    TRY_OK(write_all(fd, pending.data(), pending.size(), path));
    pending.clear();
    return ok();
  }
};

TokenFileWriter::TokenFileWriter() : impl_(std::make_unique<Impl>()) {}
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;
TokenFileWriter::~TokenFileWriter() = default;

Result<TokenFileWriter> TokenFileWriter::create(const std::string& path, std::uint64_t vocabulary) {
  if (vocabulary == 0 || vocabulary > kVocabularyMax)
    return Error(Code::kInvalid, "a vocabulary of " + std::to_string(vocabulary));
  TokenFileWriter writer;
  Impl& impl = *writer.impl_;
  impl.path = path;
  impl.vocabulary = vocabulary;
  impl.width = vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4;
  impl.pending.reserve(kDigestPiece);
  impl.fd = ::open((path + ".tmp").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (impl.fd < 0) return system_error("creating " + path + ".tmp");
  const Header blank{};
  TRY_OK(write_all(impl.fd, &blank, sizeof blank, path));
  return writer;
}

Status TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::uint64_t>(token) >= impl.vocabulary)
      return Error(Code::kInvalid, "token " + std::to_string(token) +
                                       " is outside the vocabulary of " +
                                       std::to_string(impl.vocabulary));
    unsigned char bytes[4];
    std::memcpy(bytes, &token, sizeof bytes);
    impl.pending.insert(impl.pending.end(), bytes, bytes + impl.width);
    impl.count += 1;
    if (impl.pending.size() == kDigestPiece) TRY_OK(impl.flush());
  }
  return ok();
}

Status TokenFileWriter::finish() {
  Impl& impl = *impl_;
  CHECK(impl.fd >= 0);
  TRY_OK(impl.flush());
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.width = static_cast<std::uint32_t>(impl.width);
  header.count = impl.count;
  header.vocabulary = impl.vocabulary;
  header.digest = impl.digest.value();
  if (pwrite(impl.fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      fsync(impl.fd) != 0)
    return system_error("writing " + impl.path);
  close(std::exchange(impl.fd, -1));
  if (std::rename((impl.path + ".tmp").c_str(), impl.path.c_str()) != 0)
    return system_error("renaming " + impl.path);
  return ok();
}

std::uint64_t TokenFileWriter::count() const { return impl_->count; }

}  // namespace rubato::worker
