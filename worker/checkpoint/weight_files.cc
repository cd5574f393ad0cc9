#include "worker/checkpoint/weight_files.h"

#include "common/json.h"
#include "common/words.h"
#include "worker/checkpoint/widen.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <utility>

namespace rubato::worker {

namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr std::size_t kConfigBytesMax = 1u << 20;
constexpr std::size_t kIndexBytesMax = 32u << 20;
constexpr std::string_view kRoots[] = {"transformer.", "model."};
// Tables that older programs saved beside the weights; they follow from the configuration.
constexpr std::string_view kConstants[] = {".attn.bias", ".attn.masked_bias",
                                           ".rotary_emb.inv_freq"};
constexpr std::string_view kPositions = "transformer.wpe.weight";
constexpr std::string_view kHead = "lm_head.weight";

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const std::int64_t extent : shape)
    out += (out.size() > 1 ? ", " : "") + std::to_string(extent);
  return out + "]";
}

std::string tensor_called(const std::string& name) { return "tensor " + excerpt(name); }

Error unlike(const std::string& file, const std::string& what, const std::string& expected,
             const std::string& found) {
  return Error(Code::kInvalid, file + ": " + what + ": expected " + expected + ", found " + found);
}

Result<ModelConfig> parse_config(const std::string& text, const std::string& folder) {
  const auto parsed = json::parse(text, {.refuses_duplicates = true});
  if (!parsed.ok()) return parsed.error().in(folder + "/" + kConfigName);
  auto read = from_huggingface_config(*parsed);
  if (!read.ok()) return read.error().in(folder);
  return read;
}

Status must_be_folder(FileSystem& files, const std::string& path) {
  TRY(const FileStat about, files.stat(path));
  if (about.is_directory) return ok();
  return unlike(path, "weights", std::string("a folder that has them and ") + kConfigName,
                "a file");
}

// What cannot be looked at is not missing.
Result<bool> is_in_folder(FileSystem& files, const std::string& folder, const char* name) {
  const auto about = files.stat(folder + "/" + name);
  if (!about.ok() && about.error().code() != Code::kNotFound) return about.error();
  return about.ok();
}

// Of a folder without weights that are read.
std::string way_out(FileSystem& files, const std::string& folder) {
  for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (files.stat(folder + "/" + pickled).ok())
      return std::string(", but ") + pickled +
             ": load it with transformers, and save it with save_pretrained(folder, "
             "safe_serialization=True)";
  return " (save_pretrained() of transformers writes one)";
}

std::string_view without_root(std::string_view name) {
  for (const std::string_view root : kRoots)
    if (name.starts_with(root)) return name.substr(root.size());
  return name;
}

}  // namespace

Result<std::map<std::string, std::string>> parse_weight_index(std::string_view text) {
  TRY(const json::Value index,
      json::parse(text, {.depth = 8, .bytes = kIndexBytesMax, .refuses_duplicates = true}));
  const json::Value& map = index["weight_map"];
  if (!map.is_object() || map.members().empty())
    return Error(Code::kInvalid,
                 "weight_map: expected an object of file names, found " +
                     (map.is_null() ? std::string("none") : excerpt(json::dump(map))));
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : map.members()) {
    const std::string name = file.string_or("");
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.') ||
        name != readable(name))
      return Error(Code::kInvalid, tensor_called(tensor) +
                                       ": expected a file beside the index, found " +
                                       excerpt(json::dump(file)));
    out[tensor] = name;
  }
  return out;
}

Result<ModelConfig> read_model_config(FileSystem& files, const std::string& folder) {
  TRY_OK(must_be_folder(files, folder));
  TRY(const std::string text, read_text(files, folder + "/" + kConfigName, kConfigBytesMax));
  return parse_config(text, folder);
}

Result<WeightFiles> WeightFiles::open(FileSystem& files, const std::string& path) {
  WeightFiles weights;
  weights.path_ = path;
  TRY_OK(must_be_folder(files, path));
  TRY(const bool has_config, is_in_folder(files, path, kConfigName));
  if (!has_config) return unlike(path, kConfigName, "one", "none");
  TRY(weights.config_, read_text(files, path + "/" + kConfigName, kConfigBytesMax));
  TRY(const bool has_single, is_in_folder(files, path, kSingleName));
  TRY(const bool has_index, is_in_folder(files, path, kIndexName));
  if (has_single == has_index)
    return unlike(path, "weights", std::string(kSingleName) + " or " + kIndexName,
                  has_single ? "both" : "neither" + way_out(files, path));
  TRY_OK(has_single ? weights.add_file(files, path + "/" + kSingleName)
                    : weights.open_shards(files));
  return weights;
}

Status WeightFiles::open_shards(FileSystem& files) {
  const std::string index = path_ + "/" + kIndexName;
  TRY(const std::string text, read_text(files, index, kIndexBytesMax));
  const auto map = parse_weight_index(text);
  if (!map.ok()) return map.error().in(index);
  std::vector<std::string> shards;
  for (const auto& [tensor, file] : *map) shards.push_back(file);
  std::ranges::sort(shards);
  shards.erase(std::ranges::unique(shards).begin(), shards.end());
  for (const std::string& shard : shards) TRY_OK(add_file(files, path_ + "/" + shard));
  for (const auto& [tensor, file] : *map) {
    const auto at = tensors_.find(tensor);
    const std::string found = at == tensors_.end() ? "none" : names_[at->second.file];
    if (found != path_ + "/" + file)
      return unlike(index, tensor_called(tensor), "it in " + excerpt(file), found);
  }
  for (const auto& [tensor, place] : tensors_)
    if (!map->contains(tensor))
      return unlike(names_[place.file], tensor_called(tensor), "a tensor of " + index, "another");
  return ok();
}

Status WeightFiles::add_file(FileSystem& files, const std::string& path) {
  TRY(Safetensors opened, Safetensors::open(files, path));
  names_.push_back(path);
  files_.push_back(std::move(opened));
  // The entries lie in a vector of their own, which moves with its owner.
  for (const TensorEntry& tensor : files_.back().tensors()) {
    const auto [at, is_new] = tensors_.try_emplace(tensor.name, Place{files_.size() - 1, &tensor});
    if (!is_new)
      return unlike(path, tensor_called(tensor.name), "it once",
                    "it also in " + names_[at->second.file]);
  }
  return ok();
}

Status WeightFiles::check(const ModelConfig& config) const {
  const std::string file = path_ + "/" + kConfigName;
  auto read = parse_config(config_, path_);
  if (!read.ok()) return read.error();
  read->sequence_length = config.sequence_length;
  if (*read == config) return ok();
  const json::Value ours = to_huggingface_config(config);
  const json::Value theirs = to_huggingface_config(*read);
  for (const auto& [member, value] : ours.members())
    if (!(theirs[member] == value))
      return unlike(file, member, json::dump(value), excerpt(json::dump(theirs[member])));
  return ok();
}

const WeightFiles::Place* WeightFiles::find(const std::string& name) const {
  auto at = tensors_.find(name);
  if (at == tensors_.end()) at = tensors_.find(without_root(name));
  return at == tensors_.end() ? nullptr : &at->second;
}

Status WeightFiles::check(const ParameterTable& table) const {
  for (const Parameter& entry : table.entries()) {
    const Place* place = find(entry.name);
    if (place == nullptr)
      return unlike(names_.size() == 1 ? names_[0] : path_, tensor_called(entry.name),
                    text_of(entry.shape), "none");
    TRY_OK(check_tensor(entry, *place));
  }
  return ok();
}

Status WeightFiles::read(const ParameterTable& table, std::vector<float>& flat) const {
  TRY_OK(check(table));
  flat.assign(static_cast<std::size_t>(table.flat_count()), 0.0f);
  for (const Parameter& entry : table.entries())
    TRY_OK(read_tensor(*find(entry.name),
                       std::span(flat).subspan(static_cast<std::size_t>(entry.offset),
                                               static_cast<std::size_t>(entry.count))));
  return check_rest(table, flat);
}

// Backwards: the first tensor, to which a head may be tied, is still there at the end.
Status WeightFiles::read_each(const ParameterTable& table, const TakeTensor& take) const {
  TRY_OK(check(table));
  std::vector<float> tensor;
  tensor.reserve(static_cast<std::size_t>(table.largest_count()));
  for (const Parameter& entry : std::views::reverse(table.entries())) {
    tensor.resize(static_cast<std::size_t>(entry.count));
    TRY_OK(read_tensor(*find(entry.name), tensor));
    TRY_OK(take(entry, tensor));
  }
  CHECK_EQ(table.entries().front().offset, 0);
  return check_rest(table, tensor);
}

Status WeightFiles::check_tensor(const Parameter& entry, const Place& place) const {
  const TensorEntry& tensor = *place.tensor;
  const std::string what = tensor_called(tensor.name);
  if (width_of_floats(tensor.dtype) == 0)
    return unlike(names_[place.file], what, "F32, BF16 or F16", tensor.dtype);
  std::vector<std::int64_t> shape = tensor.shape;
  if (entry.name == kPositions && !shape.empty()) shape[0] = std::min(shape[0], entry.shape[0]);
  if (shape == entry.shape) return ok();
  return unlike(names_[place.file], what, text_of(entry.shape), text_of(tensor.shape));
}

Status WeightFiles::read_tensor(const Place& place, std::span<float> to) const {
  const TensorEntry& tensor = *place.tensor;
  const std::size_t width = width_of_floats(tensor.dtype);
  TensorEntry part = tensor;  // its first rows
  part.size = to.size() * width;
  if (width == sizeof(float)) return files_[place.file].read(part, std::as_writable_bytes(to));
  std::vector<std::byte> bytes(part.size);
  TRY_OK(files_[place.file].read(part, bytes));
  widen(tensor.dtype, bytes, to);
  return ok();
}

// What the table does not ask for: constants, and a copy of the tied head. A tensor of the table
// under its other name is no such thing: which of the two counts, nobody could say.
Status WeightFiles::check_rest(const ParameterTable& table, const std::vector<float>& flat) const {
  std::map<std::string_view, const Parameter*> known;
  for (const Parameter& entry : table.entries()) {
    known[entry.name] = &entry;
    known[without_root(entry.name)] = &entry;
  }
  for (const auto& [name, place] : tensors_) {
    if (const auto entry = known.find(name); entry != known.end()) {
      const Place* taken = find(entry->second->name);
      if (taken == &place) continue;
      return unlike(names_[place.file], tensor_called(name), "it once",
                    "it also as " + taken->tensor->name);
    }
    if (std::ranges::any_of(kConstants, [&](auto end) { return name.ends_with(end); })) continue;
    if (name != kHead)
      return unlike(names_[place.file], tensor_called(name), "none (this model has no such tensor)",
                    place.tensor->dtype + " " + text_of(place.tensor->shape));
    const Parameter& tied = table.entries().front();
    TRY_OK(check_tensor(tied, place));
    std::vector<float> copy(static_cast<std::size_t>(tied.count));
    TRY_OK(read_tensor(place, copy));
    if (!std::ranges::equal(
            copy, std::span(flat).subspan(static_cast<std::size_t>(tied.offset), copy.size())))
      return unlike(names_[place.file], tensor_called(name),
                    "the bytes of " + tied.name + ", to which this model's is tied", "others");
  }
  return ok();
}

namespace {

struct Shard {
  std::vector<const Parameter*> tensors;
  std::uint64_t bytes = 0;
};

std::vector<Shard> shards_of(const ParameterTable& table, const WeightFormat& format) {
  std::vector<Shard> shards(1);
  for (const Parameter& entry : table.entries()) {
    const std::uint64_t size =
        static_cast<std::uint64_t>(entry.count) * width_of_floats(format.dtype);
    if (!shards.back().tensors.empty() && shards.back().bytes + size > format.shard_bytes)
      shards.emplace_back();
    shards.back().tensors.push_back(&entry);
    shards.back().bytes += size;
  }
  return shards;
}

Status write_shard(FileSystem& files, const std::string& path, const Shard& shard,
                   std::span<const float> flat, const std::string& dtype) {
  const std::size_t width = width_of_floats(dtype);
  std::vector<std::byte> short_bytes(width == sizeof(float) ? 0 : shard.bytes);
  std::vector<TensorView> views;
  std::size_t at = 0;
  for (const Parameter* tensor : shard.tensors) {
    const auto from = flat.subspan(static_cast<std::size_t>(tensor->offset),
                                   static_cast<std::size_t>(tensor->count));
    const std::size_t size = from.size() * width;
    const void* bytes = from.data();
    if (!short_bytes.empty()) {
      narrow(dtype, from, std::span(short_bytes).subspan(at, size));
      bytes = short_bytes.data() + at;
    }
    views.push_back({tensor->name, dtype, tensor->shape, bytes, size});
    at += size;
  }
  const auto written = write_safetensors(files, path, views, {{"format", "pt"}});
  return written.ok() ? ok() : Status(written.error());
}

std::string shard_name(std::size_t index, std::size_t of) {
  const auto five = [](std::size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - std::min<std::size_t>(digits.size(), 5), '0') + digits;
  };
  return of == 1 ? kSingleName : "model-" + five(index + 1) + "-of-" + five(of) + ".safetensors";
}

std::string name_in_torch(std::string_view dtype) {
  if (dtype == "F32") return "float32";
  return dtype == "F16" ? "float16" : "bfloat16";
}

Status write_json(FileSystem& files, const std::string& path, const json::Value& value) {
  return replace_file(files, path, json::dump(value, 2) + "\n");
}

}  // namespace

std::string not_finite(const ParameterTable& table, std::span<const float> flat,
                       std::string_view dtype) {
  const float bound = infinite_from(dtype);
  const auto is_broken = [&](float weight) { return !(std::abs(weight) < bound); };
  const auto first = std::ranges::find_if(flat, is_broken);
  if (first == flat.end()) return "";
  const auto after =
      std::ranges::upper_bound(table.entries(), first - flat.begin(), {}, &Parameter::offset);
  return counted(std::ranges::count_if(flat, is_broken), "parameter", "is", "are") +
         " not finite in " + std::string(dtype) + ", the first in tensor " + std::prev(after)->name;
}

Status write_weights(FileSystem& files, const std::string& directory, const ModelConfig& config,
                     const ParameterTable& table, std::span<const float> flat,
                     const WeightFormat& format) {
  CHECK_EQ(static_cast<std::int64_t>(flat.size()), table.flat_count());
  const std::vector<Shard> shards = shards_of(table, format);
  json::Value map = json::Value::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    TRY_OK(write_shard(files, directory + "/" + name, shards[i], flat, format.dtype));
    for (const Parameter* tensor : shards[i].tensors) map.set(tensor->name, name);
    total += shards[i].bytes;
  }
  if (shards.size() > 1)
    TRY_OK(
        write_json(files, directory + "/" + kIndexName,
                   json::Value::object({{"metadata", json::Value::object({{"total_size", total}})},
                                        {"weight_map", map}})));
  TRY_OK(files.sync_directory(directory));
  json::Value about = to_huggingface_config(config);
  for (const char* member : {"dtype", "torch_dtype"})
    about.set(member, name_in_torch(format.dtype));
  TRY_OK(write_json(files, directory + "/" + kConfigName, about));
  return files.sync_directory(directory);
}

}  // namespace rubato::worker
