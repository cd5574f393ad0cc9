// Files that somebody else may have written, or a disk damaged: tokens, safetensors, checkpoints;
// and the training of a job, as the worker reads it.
#include "common/json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/run_info.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/step_record.h"
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

}  // namespace rubato::worker
