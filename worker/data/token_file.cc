#include "worker/data/token_file.h"

#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/data/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rubato::worker {

namespace {

constexpr char kMagic[8] = {'R', 'U', 'B', 'T', 'O', 'K', '1', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kVocabularyMax = 1u << 22;
// The digest is taken over pieces of this size, so that a writer can make it as it goes.
constexpr std::size_t kDigestPiece = 1u << 20;
static_assert(kDigestPiece % kTokenBlockBytes == 0);

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

Error with_reason(Error error, const char* reason) { return error.set_reason(reason); }

Error damaged(const std::string& path, const std::string& why) {
  return with_reason(Error(Code::kInvalid, path + " is damaged: " + why), "DataDamaged");
}

// The largest token + 1.
std::uint64_t above(std::span<const std::byte> bytes, int width) {
  std::uint64_t highest = 0;
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(width)) {
    std::uint32_t token = 0;
    std::memcpy(&token, bytes.data() + at, static_cast<std::size_t>(width));
    highest = std::max<std::uint64_t>(highest, token);
  }
  return highest + 1;
}

bool is_llmc(std::int32_t magic) { return magic == kLlmcGpt2 || magic == kLlmcLlama3; }

// Whether an index of Megatron-LM is beside it: it says what the tokens are. One that cannot be
// looked at is not missing.
Result<bool> has_megatron_index(FileSystem& files, const std::string& path) {
  const std::string index = megatron_index_of(path);
  if (index.empty()) return false;
  const auto about = files.stat(index);
  if (!about.ok() && about.error().code() != Code::kNotFound) return about.error();
  return about.ok();
}

// Whether open() would read it as tokens, whole or damaged.
Result<bool> is_token_file(FileSystem& files, const std::string& path) {
  TRY(const bool has_index, has_megatron_index(files, path));
  if (has_index) return true;
  TRY(const auto file, files.open(path, OpenMode::kRead));
  char magic[sizeof kMagic] = {};
  TRY_OK(file->read_at(0, std::as_writable_bytes(std::span(magic))));
  std::int32_t number = 0;
  std::memcpy(&number, magic, sizeof number);
  return std::memcmp(magic, kMagic, sizeof kMagic) == 0 || is_llmc(number);
}

}  // namespace

Error unreadable_data(const Error& error) {
  return with_reason(error, error.code() == Code::kNotFound ? "DataNotFound" : "DataUnreadable");
}

Result<std::string> find_token_file(FileSystem& files, const std::string& path) {
  const auto about = files.stat(path);
  if (!about.ok() || !about->is_directory) return path;  // opening it says what is wrong
  const auto names = files.list(path);
  if (!names.ok()) return unreadable_data(names.error());
  std::vector<std::string> found;
  for (const std::string& name : *names) {
    const std::string entry = path + "/" + name;
    if (const auto inner = files.stat(entry); inner.ok() && inner->is_directory) continue;
    const auto is_one = is_token_file(files, entry);
    if (is_one.ok() && *is_one) found.push_back(name);
    if (is_one.ok()) continue;
    // What is gone since it was listed, a pipe and the like are none.
    const Code why = is_one.error().code();
    if (why != Code::kNotFound && why != Code::kInvalid) return unreadable_data(is_one.error());
  }
  if (found.size() == 1) return path + "/" + found.front();
  std::string what = found.empty() ? "none" : std::to_string(found.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 2); ++i)
    what += (i == 0 ? ": " : ", ") + excerpt(found[i]);
  return with_reason(Error(Code::kNotFound, path + ": expected one token file, found " + what),
                     "DataNotFound");
}

Result<TokenFile> TokenFile::open(FileSystem& files, const std::string& path) {
  TokenFile file;
  file.path_ = path;
  auto opened = files.open(path, OpenMode::kRead);
  if (!opened.ok()) return unreadable_data(opened.error());
  file.file_ = std::move(opened).value();
  const Result<std::uint64_t> size = file.file_->size();
  if (!size.ok()) return unreadable_data(size.error());
  const auto has_index = has_megatron_index(files, path);
  if (!has_index.ok()) return unreadable_data(has_index.error());
  const std::string index = megatron_index_of(path);
  if (*has_index)
    TRY_OK(file.parse_index(files, index));
  else
    TRY_OK(file.parse_header(*size));
  const auto width = static_cast<std::uint64_t>(file.width_);
  const std::uint64_t body = *size - file.header_bytes_;
  if (body % width != 0 || file.count_ != body / width)
    return damaged(path, (*has_index ? "its index " + index : std::string("its header")) +
                             " says " + counted(file.count_, "token") + ", it has " +
                             counted(body, "byte") + " of them");
  TRY_OK(file.digest_blocks());
  return file;
}

Status TokenFile::parse_header(std::uint64_t size) {
  const auto invalid = [&](const std::string& why) {
    return with_reason(Error(Code::kInvalid, path_ + " is not a token file: " + why),
                       "DataInvalid");
  };
  Header header;
  std::int32_t llmc[3];
  if (size < sizeof header) return invalid("only " + counted(size, "byte"));
  const Result<std::size_t> got = file_->read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  if (!got.ok()) return unreadable_data(got.error());
  if (*got < sizeof header) return damaged(path_, "it was cut while it was read");
  std::memcpy(llmc, &header, sizeof llmc);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) == 0) {
    if (header.version != kVersion) return invalid("version " + std::to_string(header.version));
    if (header.width != 1 && header.width != 2 && header.width != 4)
      return invalid(counted(header.width, "byte") + " per token");
    if (header.vocabulary == 0 || header.vocabulary > kVocabularyMax)
      return invalid("a vocabulary of " + std::to_string(header.vocabulary));
    width_ = static_cast<int>(header.width);
    count_ = header.count;
    vocabulary_ = header.vocabulary;
    digest_ = header.digest;
    has_digest_ = true;
    header_bytes_ = sizeof header;
    return ok();
  }
  if (!is_llmc(llmc[0])) return invalid("neither our magic nor llm.c's");
  if (size < kLlmcHeaderBytes || llmc[2] < 0) return invalid("llm.c header cut short");
  width_ = llmc[0] == kLlmcGpt2 ? 2 : 4;
  count_ = static_cast<std::uint64_t>(llmc[2]);
  vocabulary_ = llmc[0] == kLlmcGpt2 ? 50257 : 128256;
  header_bytes_ = kLlmcHeaderBytes;
  return ok();
}

Status TokenFile::parse_index(FileSystem& files, const std::string& index) {
  const auto read = read_megatron_index(files, index);
  if (!read.ok() && read.error().code() == Code::kInvalid)
    return with_reason(read.error(), "DataInvalid");
  if (!read.ok()) return unreadable_data(read.error());
  width_ = read->width;
  count_ = read->tokens;
  has_vocabulary_ = false;
  return ok();
}

// Of every block, and of the whole.
Status TokenFile::digest_blocks() {
  const std::uint64_t size = count_ * static_cast<std::uint64_t>(width_);
  std::vector<std::byte> piece(std::min<std::uint64_t>(size, kDigestPiece));
  blocks_.reserve((size + kTokenBlockBytes - 1) / kTokenBlockBytes);
  Digest whole;
  std::uint64_t found = 0;  // the largest token + 1, where no digest vouches for them
  for (std::uint64_t at = 0; at < size; at += kDigestPiece) {
    const std::span<std::byte> bytes =
        std::span(piece).first(std::min<std::uint64_t>(kDigestPiece, size - at));
    TRY_OK(read_bytes(at, bytes));
    whole.add(bytes.data(), bytes.size());
    if (!has_digest_) found = std::max(found, above(bytes, width_));
    for (std::size_t block = 0; block < bytes.size(); block += kTokenBlockBytes)
      blocks_.push_back(
          digest_of(bytes.data() + block, std::min(kTokenBlockBytes, bytes.size() - block)));
  }
  const std::uint64_t most = has_vocabulary_ ? vocabulary_ : kVocabularyMax;
  if (found > most)
    return with_reason(
        Error(Code::kInvalid, path_ + " has the token " + std::to_string(found - 1) +
                                  ", those below " + std::to_string(most) + " are read"),
        "DataInvalid");
  if (!has_vocabulary_) vocabulary_ = found;
  if (has_digest_ && whole.value() != digest_)
    return damaged(
        path_, "its digest is " + to_hex(whole.value()) + ", its header says " + to_hex(digest_));
  digest_ = whole.value();
  return ok();
}

// Token bytes [at, at + to.size()).
Status TokenFile::read_bytes(std::uint64_t at, std::span<std::byte> to) const {
  const Result<std::size_t> got = file_->read_at(header_bytes_ + at, to);
  if (!got.ok()) return unreadable_data(got.error());
  if (*got == to.size()) return ok();
  return damaged(path_, "it is shorter than it was when it was opened");
}

Status TokenFile::read(std::uint64_t first, std::span<std::int32_t> out) const {
  CHECK(first <= count_ && out.size() <= count_ - first);
  if (out.empty()) return ok();
  const auto width = static_cast<std::size_t>(width_);
  const std::uint64_t begin = first * width / kTokenBlockBytes * kTokenBlockBytes;
  const std::uint64_t end =
      std::min(count_ * width, ((first + out.size()) * width + kTokenBlockBytes - 1) /
                                   kTokenBlockBytes * kTokenBlockBytes);
  std::vector<std::byte> bytes(end - begin);
  TRY_OK(read_bytes(begin, bytes));
  for (std::size_t at = 0; at < bytes.size(); at += kTokenBlockBytes) {
    const std::size_t block = (begin + at) / kTokenBlockBytes;
    if (digest_of(bytes.data() + at, std::min(kTokenBlockBytes, bytes.size() - at)) !=
        blocks_[block])
      return damaged(path_, "the block at token " + std::to_string((begin + at) / width) +
                                " is not what it was when it was opened");
  }
  const std::byte* from = bytes.data() + (first * width - begin);
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t token = 0;  // little-endian, like every machine we run on
    std::memcpy(&token, from + i * width, width);
    highest = std::max(highest, token);
    out[i] = static_cast<std::int32_t>(token);
  }
  if (highest < vocabulary_) return ok();
  return damaged(path_, "token " + std::to_string(highest) + " near place " +
                            std::to_string(first) + " is outside the vocabulary of " +
                            std::to_string(vocabulary_));
}

struct TokenFileWriter::Impl {
  explicit Impl(FileSystem& where) : files(where) {}
  ~Impl() {
    if (!file) return;
    file.reset();
    (void)files.remove_all(path + ".tmp");
  }

  FileSystem& files;
  std::string path;
  std::unique_ptr<File> file;
  std::uint64_t at = sizeof(Header);  // where the next bytes go
  std::uint64_t vocabulary = 0;
  std::uint64_t count = 0;
  int width = 0;
  Digest digest;
  std::vector<std::byte> pending;  // up to one digest piece

  Status flush() {
    if (pending.empty()) return ok();
    digest.add(pending.data(), pending.size());
    TRY_OK(file->write_at(at, pending));
    at += pending.size();
    pending.clear();
    return ok();
  }
};

TokenFileWriter::TokenFileWriter() = default;
TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter& TokenFileWriter::operator=(TokenFileWriter&&) noexcept = default;
TokenFileWriter::~TokenFileWriter() = default;

Result<TokenFileWriter> TokenFileWriter::create(FileSystem& files, const std::string& path,
                                                std::uint64_t vocabulary) {
  if (vocabulary == 0 || vocabulary > kVocabularyMax)
    return Error(Code::kInvalid, "a vocabulary of " + std::to_string(vocabulary));
  TokenFileWriter writer;
  writer.impl_ = std::make_unique<Impl>(files);
  Impl& impl = *writer.impl_;
  impl.path = path;
  impl.vocabulary = vocabulary;
  impl.width = vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4;
  impl.pending.reserve(kDigestPiece);
  TRY(impl.file, files.open(path + ".tmp", OpenMode::kCreate));
  return writer;
}

Status TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  Impl& impl = *impl_;
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::uint64_t>(token) >= impl.vocabulary)
      return Error(Code::kInvalid, "token " + std::to_string(token) +
                                       " is outside the vocabulary of " +
                                       std::to_string(impl.vocabulary));
    std::byte bytes[4];
    std::memcpy(bytes, &token, sizeof bytes);
    impl.pending.insert(impl.pending.end(), bytes, bytes + impl.width);
    impl.count += 1;
    if (impl.pending.size() == kDigestPiece) TRY_OK(impl.flush());
  }
  return ok();
}

Status TokenFileWriter::finish() {
  Impl& impl = *impl_;
  CHECK(impl.file != nullptr);
  TRY_OK(impl.flush());
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.width = static_cast<std::uint32_t>(impl.width);
  header.count = impl.count;
  header.vocabulary = impl.vocabulary;
  header.digest = impl.digest.value();
  TRY_OK(impl.file->write_at(0, std::as_bytes(std::span(&header, 1))));
  TRY_OK(impl.file->sync());
  TRY_OK(impl.files.rename(impl.path + ".tmp", impl.path));
  impl.file.reset();
  return impl.files.sync_directory(parent_of(impl.path));
}

std::uint64_t TokenFileWriter::count() const { return impl_->count; }

}  // namespace rubato::worker
