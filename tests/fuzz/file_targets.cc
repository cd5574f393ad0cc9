// Files that somebody else may have written, or a disk damaged: tokens, safetensors, checkpoints;
// and the training of a job, as the worker reads it.
#include "common/json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/run_info.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/step_record.h"
#include "worker/checkpoint/weight_files.h"
#include "worker/data/json_tokenizer.h"
#include "worker/data/token_file.h"
#include "worker/step/training_config.h"

#include <string>
#include <vector>

namespace rubato::worker {

FUZZ_TARGET(tokens) {
  fuzz::MemoryFiles files;
  files.files["t"] = input;
  const auto tokens = TokenFile::open(files, "t");
  if (!tokens.ok()) return;
  CHECK(tokens->count() <= input.size());
  std::vector<std::int32_t> read(std::min<std::uint64_t>(tokens->count(), 4096));
  if (!tokens->read(tokens->count() - read.size(), read).ok()) return;
  for (const std::int32_t token : read)
    CHECK(token >= 0 && static_cast<std::uint64_t>(token) < tokens->vocabulary());
}

FUZZ_TARGET(safetensors) {
  const auto file = Safetensors::open(std::make_unique<fuzz::MemoryFile>(std::string(input)), "m");
  if (!file.ok()) return;
  for (const TensorEntry& tensor : file->tensors()) {
    CHECK(tensor.offset <= input.size() && tensor.size <= input.size() - tensor.offset);
    CHECK(file->find(tensor.name) != nullptr);
    std::vector<std::byte> bytes(tensor.size);
    CHECK(file->read(tensor, bytes).ok());
  }
}

FUZZ_TARGET(checkpoint) {
  fuzz::MemoryFiles files;
  fuzz::Choices choices(input);
  const std::string_view records = choices.bytes();
  files.files["c/steps.bin"] = records;
  files.files["c/step-00000007/run.json"] = choices.rest();
  files.files["c/step-00000007/steps.bin"] = records;
  files.files["c/step-00000007/model.safetensors"] = "";
  (void)parse_run_info(std::string(choices.rest()));
  (void)read_step_records(files, "c/steps.bin");
  const CheckpointFolder folder(files, "c");
  (void)folder.steps();
  (void)folder.summary(7);
  (void)folder.verify(7);
}

FUZZ_TARGET(training) {
  const auto config = parse_training(input);
  if (!config.ok()) return;
  CHECK(config->sampler.global_batch > 0 && config->sampler.micro_batch > 0);
}

// The first line is a tokenizer.json, what follows is a text for it.
FUZZ_TARGET(tokenizer) {
  const std::size_t end = std::min(input.find('\n'), input.size());
  const auto tokenizer = JsonTokenizer::parse(input.substr(0, end));
  if (!tokenizer.ok()) return;
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  const auto tokens = tokenizer->encode(text);
  for (const std::int32_t token : tokens) CHECK(token >= 0 && token < tokenizer->vocabulary());
  (void)tokenizer->decode(tokens);
  CHECK(tokenizer->whole_part(text) <= text.size());
}

// NAME.idx, then NAME.bin, which begins at the place that the first two bytes say.
FUZZ_TARGET(megatron) {
  fuzz::MemoryFiles files;
  if (input.size() < 2) return;
  const std::size_t at = std::min<std::size_t>(
      2 + static_cast<unsigned char>(input[0]) + 256u * static_cast<unsigned char>(input[1]),
      input.size());
  files.files["t.idx"] = input.substr(2, at - 2);
  files.files["t.bin"] = input.substr(at);
  const auto tokens = TokenFile::open(files, "t.bin");
  if (!tokens.ok()) return;
  std::vector<std::int32_t> read(std::min<std::uint64_t>(tokens->count(), 4096));
  CHECK(tokens->read(0, read).ok());
}

// config.json, and the index of shards.
FUZZ_TARGET(huggingface) {
  if (const auto shards = parse_weight_index(input); shards.ok())
    for (const auto& [tensor, file] : *shards)
      CHECK(!file.empty() && file.find('/') == std::string::npos && file[0] != '.');
  const auto parsed = json::parse(input);
  if (!parsed.ok()) return;
  const auto config = from_huggingface_config(*parsed);
  if (!config.ok()) return;
  CHECK(from_huggingface_config(to_huggingface_config(*config)).value() == *config);
}

}  // namespace rubato::worker
