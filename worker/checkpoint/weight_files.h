// The weights of a model as Hugging Face keeps them: config.json beside model.safetensors, or
// beside shards and model.safetensors.index.json. Names and shapes are those of the parameter
// table. F32, BF16 and F16 are read (the latter two widened exactly), and written.
//
// What does not fit is refused with the file, the tensor or member, what was expected and what was
// found. Nothing is taken from a folder that has one tensor too few, too many, or twice, or no
// config.json: much of what a model computes stands there alone.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/model.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// The config.json of a folder.
Result<ModelConfig> read_model_config(FileSystem& files, const std::string& folder);

class WeightFiles {
 public:
  // Reads all headers of the folder `path`. kInvalid: damaged, cut short, contradictory, or no such
  // folder; else the files' own errors.
  static Result<WeightFiles> open(FileSystem& files, const std::string& path);

  // kInvalid when the folder's config.json describes another model. The length of a sequence may
  // differ: GPT-2's table of positions must be as long, and may be longer.
  Status check(const ModelConfig& config) const;
  // kInvalid when a tensor of the table is missing, or has another shape. Reads none of them, so
  // that a config.json that says too much can be refused before memory is taken for its model.
  Status check(const ParameterTable& table) const;
  // Fills `flat` (flat_count() elements) with the tensors of the table, padding zero, once
  // check(table) is well. Waits for the disk. Names are taken with and without "transformer." or
  // "model.".
  Status read(const ParameterTable& table, std::vector<float>& flat) const;
  // The same a tensor at a time, in memory of the largest; of two where the folder has a copy of a
  // tied head. What `take` is given stays until it returns.
  using TakeTensor = std::function<Status(const Parameter& entry, std::span<const float> tensor)>;
  Status read_each(const ParameterTable& table, const TakeTensor& take) const;

 private:
  struct Place {
    std::size_t file;
    const TensorEntry* tensor;
  };
  Status open_shards(FileSystem& files);
  Status add_file(FileSystem& files, const std::string& path);
  const Place* find(const std::string& name) const;
  Status check_tensor(const Parameter& entry, const Place& place) const;
  Status read_tensor(const Place& place, std::span<float> to) const;
  Status check_rest(const ParameterTable& table, const std::vector<float>& flat) const;

  std::string path_;
  std::string config_;              // the text of config.json
  std::vector<std::string> names_;  // of the files
  std::vector<Safetensors> files_;
  std::map<std::string, Place, std::less<>> tensors_;
};

// The shards that model.safetensors.index.json names, by tensor. Bounded; kInvalid: not such an
// index, or a file that is not beside it.
Result<std::map<std::string, std::string>> parse_weight_index(std::string_view text);

// "3 parameters are not finite in F16, the first in tensor lm_head.weight": those that are not in
// f32, and those that `dtype` ("F32", "BF16", "F16") has no finite number for. Empty: all are.
std::string not_finite(const ParameterTable& table, std::span<const float> flat,
                       std::string_view dtype);

struct WeightFormat {
  std::uint64_t shard_bytes;  // of tensors in a file, at most; a larger tensor has one of its own
  std::string dtype = "F32";  // or "BF16" or "F16": rounded to the nearest
};

// Writes the table's tensors and config.json into `directory`, which must exist, and an index where
// there are several files. config.json comes last and at once: a directory that has it is whole.
// Durable but for the directory's own name. Memory of one file's tensors where they are rounded.
Status write_weights(FileSystem& files, const std::string& directory, const ModelConfig& config,
                     const ParameterTable& table, std::span<const float> flat,
                     const WeightFormat& format);

}  // namespace rubato::worker
