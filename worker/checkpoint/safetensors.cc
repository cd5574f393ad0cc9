#include "worker/checkpoint/safetensors.h"

#include "common/json.h"
#include "common/words.h"
#include "worker/checkpoint/file_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>

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
  if (size == 0)
    return invalid("tensor " + excerpt(name) + " has the unknown dtype '" + excerpt(dtype) + "'");
  for (const std::int64_t extent : shape) {
    if (extent < 0) return invalid("tensor " + excerpt(name) + " has a negative extent");
    const auto e = static_cast<std::uint64_t>(extent);
    if (e != 0 && size > std::numeric_limits<std::int64_t>::max() / e)
      return invalid("tensor " + excerpt(name) + " is too large");
    size *= e;
  }
  return size;
}

// Its offset counts from the end of the header.
Result<TensorEntry> read_entry(const std::string& name, const json::Value& about) {
  TensorEntry entry;
  entry.name = name;
  if (!about.is_object())
    return invalid("tensor " + excerpt(name) + " is not described by an object");
  entry.dtype = about["dtype"].string_or("");
  const json::Value& shape = about["shape"];
  const json::Value& offsets = about["data_offsets"];
  if (!shape.is_array() || shape.size() > kRankMax)
    return invalid("tensor " + excerpt(name) + " has no usable shape");
  for (const json::Value& extent : shape.items()) {
    if (!extent.is_int())
      return invalid("tensor " + excerpt(name) + " has a shape that is not integer");
    entry.shape.push_back(extent.int_or(-1));
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[std::size_t{0}].is_int() ||
      !offsets[std::size_t{1}].is_int())
    return invalid("tensor " + excerpt(name) + " has no data_offsets");
  const std::int64_t begin = offsets[std::size_t{0}].int_or(-1);
  const std::int64_t end = offsets[std::size_t{1}].int_or(-1);
  if (begin < 0 || end < begin)
    return invalid("tensor " + excerpt(name) + " has offsets out of order");
  entry.offset = static_cast<std::uint64_t>(begin);
  entry.size = static_cast<std::uint64_t>(end - begin);
  TRY(const std::uint64_t size, bytes_of(name, entry.dtype, entry.shape));
  if (size != entry.size)
    return invalid("tensor " + excerpt(name) + " has " + counted(entry.size, "byte") +
                   ", but its shape needs " + std::to_string(size));
  return entry;
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

Status Safetensors::parse(std::string_view text, std::uint64_t file_bytes) {
  if (!text.starts_with('{')) return invalid("the header is not a JSON object");
  const Result<json::Value> parsed =
      json::parse(text, {.depth = 8, .bytes = kHeaderBytesMax, .refuses_duplicates = true});
  if (!parsed.ok()) return parsed.error().in("safetensors header");
  if (!parsed->is_object()) return invalid("the header is not a JSON object");

  for (const auto& [name, about] : parsed->members()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : about.members()) metadata_[key] = value.string_or("");
      continue;
    }
    TRY(TensorEntry entry, read_entry(name, about));
    tensors_.push_back(std::move(entry));
  }
  std::ranges::stable_sort(tensors_, {}, [](const TensorEntry& entry) {
    return std::pair(entry.offset, entry.offset + entry.size);
  });
  const std::uint64_t before = sizeof(std::uint64_t) + text.size();
  CHECK_LE(before, file_bytes);
  const std::uint64_t body = file_bytes - before;
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors_) {
    if (entry.offset != at)
      return invalid("tensor " + excerpt(entry.name) + " leaves a hole or overlaps another");
    at += entry.size;
    if (at > body)
      return invalid("tensor " + excerpt(entry.name) + " lies beyond the end of the file");
    entry.offset += before;
  }
  if (at != body) return invalid(counted(body - at, "byte") + " behind the last tensor");
  return ok();
}

Result<Safetensors> Safetensors::open(FileSystem& files, const std::string& path) {
  TRY(auto file, files.open(path, OpenMode::kRead));
  return open(std::move(file), path);
}

Result<Safetensors> Safetensors::open(std::unique_ptr<File> opened, const std::string& path) {
  Safetensors file;
  file.path_ = path;
  file.file_ = std::move(opened);
  TRY(const std::uint64_t size, file.file_->size());
  std::uint64_t header_bytes = 0;
  if (size < sizeof header_bytes) return invalid("shorter than its length field").in(path);
  TRY(std::size_t got, file.file_->read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (got < sizeof header_bytes || header_bytes > kHeaderBytesMax)
    return invalid("a header of " + counted(header_bytes, "byte")).in(path);
  if (header_bytes > size - sizeof header_bytes) return invalid("the header is cut short").in(path);
  std::string text(header_bytes, '\0');
  TRY(got, file.file_->read_at(sizeof header_bytes, std::as_writable_bytes(std::span(text))));
  text.resize(got);
  if (const Status parsed = file.parse(text, size); !parsed.ok()) return parsed.error().in(path);
  return file;
}

const TensorEntry* Safetensors::find(std::string_view name) const {
  for (const TensorEntry& tensor : tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Status Safetensors::read(const TensorEntry& tensor, std::span<std::byte> to) const {
  CHECK_EQ(to.size(), tensor.size);
  TRY(const std::size_t got, file_->read_at(tensor.offset, to));
  if (got == to.size()) return ok();
  return invalid("tensor " + excerpt(tensor.name) + " was cut while it was read").in(path_);
}

Result<std::uint64_t> write_safetensors(FileSystem& files, const std::string& path,
                                        const std::vector<TensorView>& tensors,
                                        const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const auto header_bytes = static_cast<std::uint64_t>(header.size());
  TRY(FileWriter file, FileWriter::create(files, path));
  TRY_OK(file.append(&header_bytes, sizeof header_bytes));
  TRY_OK(file.append(header.data(), header.size()));
  for (const TensorView& tensor : tensors) TRY_OK(file.append(tensor.bytes, tensor.size));
  return file.finish();
}

}  // namespace rubato::worker
