#include "worker/checkpoint/safetensors.h"

#include "common/json.h"
#include "worker/data/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::worker {

namespace {

constexpr std::size_t kRankMax = 8;

// Bytes of one element; 0 for an unknown name.
std::uint64_t element_size(std::string_view dtype) {
  static constexpr struct {
    std::string_view name;
    std::uint64_t size;
  } kTypes[] = {{"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4},
                {"U32", 4}, {"F16", 2}, {"BF16", 2},    {"I16", 2},     {"U16", 2},
                {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  for (const auto& type : kTypes)
    if (type.name == dtype) return type.size;
  return 0;
}

Error invalid(const std::string& why) { return Error(Code::kInvalid, "safetensors: " + why); }

// Product of the shape times the element size, or nothing when it does not fit.
Result<std::uint64_t> bytes_of(const std::string& name, const std::string& dtype,
                               const std::vector<std::int64_t>& shape) {
  std::uint64_t size = element_size(dtype);
  if (size == 0) return invalid("tensor " + name + " has the unknown dtype '" + dtype + "'");
  for (const std::int64_t extent : shape) {
    if (extent < 0) return invalid("tensor " + name + " has a negative extent");
    const auto e = static_cast<std::uint64_t>(extent);
    if (e != 0 && size > std::numeric_limits<std::int64_t>::max() / e)
      return invalid("tensor " + name + " is too large");
    size *= e;
  }
  return size;
}

struct Entry {
  TensorView view;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Result<Entry> read_entry(const std::string& name, const json::Value& about) {
  Entry entry;
  entry.view.name = name;
  if (!about.is_object()) return invalid("tensor " + name + " is not described by an object");
  entry.view.dtype = about["dtype"].string_or("");
  const json::Value& shape = about["shape"];
  const json::Value& offsets = about["data_offsets"];
  if (!shape.is_array() || shape.size() > kRankMax)
    return invalid("tensor " + name + " has no usable shape");
  for (const json::Value& extent : shape.items()) {
    if (!extent.is_int()) return invalid("tensor " + name + " has a shape that is not integer");
    entry.view.shape.push_back(extent.int_or(-1));
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[std::size_t{0}].is_int() ||
      !offsets[std::size_t{1}].is_int())
    return invalid("tensor " + name + " has no data_offsets");
  const std::int64_t begin = offsets[std::size_t{0}].int_or(-1);
  const std::int64_t end = offsets[std::size_t{1}].int_or(-1);
  if (begin < 0 || end < begin) return invalid("tensor " + name + " has offsets out of order");
  entry.begin = static_cast<std::uint64_t>(begin);
  entry.end = static_cast<std::uint64_t>(end);
  TRY(const std::uint64_t size, bytes_of(name, entry.view.dtype, entry.view.shape));
  if (size != entry.end - entry.begin)
    return invalid("tensor " + name + " has " + std::to_string(entry.end - entry.begin) +
                   " bytes, but its shape needs " + std::to_string(size));
  entry.view.size = size;
  return entry;
}

Status write_all(int fd, const void* from, std::uint64_t size, const std::string& path) {
  const auto* at = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t n = write(fd, at, std::min<std::uint64_t>(size, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error(Code::kUnavailable, "writing " + path + ": " + std::strerror(errno));
    at += n;
    size -= static_cast<std::uint64_t>(n);
  }
  return ok();
}

std::string header_of(const std::vector<TensorView>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  json::Value header = json::Value::object();
  if (!metadata.empty()) {
    json::Value about = json::Value::object();
    for (const auto& [key, value] : metadata) about.set(key, value);
    header.set("__metadata__", about);
  }
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const auto size = bytes_of(tensor.name, tensor.dtype, tensor.shape);
    CHECK(size.ok() && *size == tensor.size);
    json::Value shape = json::Value::array();
    for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
    header.set(tensor.name,
               json::Value::object(
                   {{"dtype", tensor.dtype},
                    {"shape", shape},
                    {"data_offsets", json::Value::array({offset, offset + tensor.size})}}));
    offset += tensor.size;
  }
  std::string text = json::dump(header);
  while (text.size() % 8 != 0) text.push_back(' ');  // so that the tensors are aligned
  return text;
}

}  // namespace

Result<Safetensors> Safetensors::parse(std::span<const unsigned char> bytes) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) return invalid("shorter than its length field");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > kHeaderBytesMax)
    return invalid("a header of " + std::to_string(header_bytes) + " bytes");
  if (header_bytes > bytes.size() - sizeof header_bytes) return invalid("the header is cut short");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header_bytes,
                              header_bytes);
  if (!text.starts_with('{')) return invalid("the header is not a JSON object");
  const Result<json::Value> parsed = json::parse(text, {.depth = 8, .bytes = kHeaderBytesMax});
  if (!parsed.ok()) return parsed.error().in("safetensors header");
  if (!parsed->is_object()) return invalid("the header is not a JSON object");

  Safetensors file;
  std::vector<Entry> entries;
  for (const auto& [name, about] : parsed->members()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : about.members()) file.metadata_[key] = value.string_or("");
      continue;
    }
    TRY(Entry entry, read_entry(name, about));
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  const std::uint64_t body = bytes.size() - sizeof header_bytes - header_bytes;
  std::uint64_t at = 0;
  for (Entry& entry : entries) {
    if (entry.begin != at)
      return invalid("tensor " + entry.view.name + " leaves a hole or overlaps another");
    at = entry.end;
    if (at > body) return invalid("tensor " + entry.view.name + " lies beyond the end of the file");
    entry.view.bytes = bytes.data() + sizeof header_bytes + header_bytes + entry.begin;
    file.tensors_.push_back(std::move(entry.view));
  }
  if (at != body) return invalid(std::to_string(body - at) + " bytes behind the last tensor");
  return file;
}

Result<Safetensors> Safetensors::open(const std::string& path) {
  TRY(auto mapping, MappedFile::open(path));
  Result<Safetensors> file = parse({mapping->bytes(), mapping->size()});
  if (!file.ok()) return file.error().in(path);
  file->mapping_ = mapping;
  return file;
}

const TensorView* Safetensors::find(std::string_view name) const {
  for (const TensorView& tensor : tensors_)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Status write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const auto header_bytes = static_cast<std::uint64_t>(header.size());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Error(Code::kUnavailable, "creating " + path + ": " + std::strerror(errno));
  Status done = write_all(fd, &header_bytes, sizeof header_bytes, path);
  if (done.ok()) done = write_all(fd, header.data(), header.size(), path);
  for (const TensorView& tensor : tensors)
    if (done.ok()) done = write_all(fd, tensor.bytes, tensor.size, path);
  if (done.ok() && fsync(fd) != 0)
    done = Error(Code::kUnavailable, "syncing " + path + ": " + std::strerror(errno));
  close(fd);
  return done;
}

}  // namespace rubato::worker
