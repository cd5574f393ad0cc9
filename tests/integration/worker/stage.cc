#include "tests/integration/worker/stage.h"

#include "tests/integration/worker/ledger_checker.h"
#include "worker/checkpoint/weight_files.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/model/model.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace rubato::worker {

namespace {
namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string training_json(const Options& options, const std::string& checkpoints) {
  std::string llama;
  if (options.family == "llama")
    llama = R"(,"kvHeads":1,"mlpHidden":96,"initFrom":")" + options.folder + "/weights\"";
  return fmt::format(
      R"({{"model":{{"family":"{}","layers":{},"hidden":{},"heads":2,"vocab":256{}}},)"
      R"("data":{{"path":"{}/tokens.bin","validationFraction":0.1}},)"
      R"("batch":{{"global":{},"micro":{},"sequenceLength":{}}},)"
      R"("optimizer":{{"name":"adamw","learningRate":0.003,"weightDecay":0.1,"gradientClip":1.0,)"
      R"("schedule":{{"warmupSteps":5,"decay":"cosine","minLearningRate":0.0001}}}},)"
      R"("stop":{{"steps":{}}},"seed":42,"evaluateEvery":10,"reduce":"exact","precision":"{}",)"
      R"("checkpoint":{{"every":12,"path":"{}","keep":3}}}})",
      options.family, options.layers, options.hidden, llama, options.folder,
      kMicroBatches * kMicroBatch, kMicroBatch, options.length, options.steps,
      options.precision == Precision::kBf16 ? "bf16" : "f32", checkpoints);
}
}  // namespace

Stage::Stage(const Options& options, const std::string& name, const std::string& secret_dir)
    : options_(options), folder_(options.folder + "/" + name) {
  fs::create_directories(folder_);
  config_.program = options.program;
  config_.device = options.device;
  config_.collective = options.collective;
  config_.folder = folder_;
  config_.secret_dir = secret_dir;
  config_.training = training_json(options, folder_ + "/checkpoints");
  config_.micro_batches = kMicroBatches;
  // So that what a story asks for comes before the end, however late this process gets to it.
  config_.fault_file = folder_ + "/pace";
  std::ofstream(config_.fault_file) << "compute:*:slow-5\n";
}

Crew& Stage::crew() {
  if (crew_) config_.first_generation = crew_->generation() + 1;
  crew_.reset();
  config_.first_pod = 100 * crews_;
  config_.folder = fmt::format("{}/crew-{}", folder_, crews_++);
  fs::create_directories(config_.folder);
  return *(crew_ = std::make_unique<Crew>(config_));
}

Outcome Stage::outcome() const {
  const std::string last = fmt::format("{}/checkpoints/step-{:08}", folder_, options_.steps);
  return {read_file(folder_ + "/checkpoints/steps.bin"), read_file(last + "/model.safetensors"),
          read_file(last + "/optimizer.safetensors"), folder_ + "/checkpoints/ledger"};
}

// Text with some structure, so that the loss falls: words of a small vocabulary.
// A Hugging Face folder of some shards.
void write_first_weights(const Options& options) {
  PosixFileSystem files;
  const ModelConfig config{.family = "llama",
                           .layers = static_cast<std::int64_t>(options.layers),
                           .heads = 2,
                           .hidden = static_cast<std::int64_t>(options.hidden),
                           .vocabulary = 256,
                           .sequence_length = static_cast<std::uint32_t>(options.length),
                           .kv_heads = 1,
                           .mlp_hidden = 96,
                           .has_tied_head = false};
  const auto device = open_device({.precision = options.precision});
  CHECK(device.ok());
  const auto model = make_model(config, 1, **device);
  CHECK(model.ok());
  std::vector<float> weights(static_cast<std::size_t>((*model)->table().flat_count()));
  (*model)->init(77, weights);
  fs::create_directories(options.folder + "/weights");
  CHECK(write_weights(files, options.folder + "/weights", config, (*model)->table(), weights,
                      {.shard_bytes = 50000})
            .ok());
}

void write_tokens(const Options& options) {
  PosixFileSystem files;
  auto writer = TokenFileWriter::create(files, options.folder + "/tokens.bin", 256);
  CHECK(writer.ok());
  std::vector<std::int32_t> tokens;
  std::uint64_t state = 7;
  for (int word = 0; word < 20000; ++word) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto kind = static_cast<std::int32_t>(state >> 59);
    for (std::int32_t i = 0; i <= kind % 5; ++i) tokens.push_back('a' + (kind + i * 3) % 26);
    tokens.push_back(' ');
  }
  CHECK(writer.value().append(tokens).ok());
  CHECK(writer.value().finish().ok());
}

std::vector<std::string> compare(const Options& options, const Outcome& outcome,
                                 const Outcome& reference) {
  std::vector<std::string> faults;
  if (outcome.steps.size() != options.steps * 32) faults.emplace_back("steps.bin is incomplete");
  if (outcome.steps != reference.steps) faults.emplace_back("loss bytes differ");
  if (outcome.weights.empty() || outcome.weights != reference.weights) {
    faults.emplace_back("weights differ");
  }
  if (outcome.moments != reference.moments) faults.emplace_back("optimizer state differs");
  LedgerTerms terms;
  terms.folder = outcome.ledger;
  terms.reference = reference.ledger;
  terms.tokens = options.folder + "/tokens.bin";
  terms.micro_batches = kMicroBatches;
  terms.micro_batch = kMicroBatch;
  terms.sequence_length = static_cast<std::uint32_t>(options.length);
  terms.steps = options.steps;
  SamplerConfig sampler;
  sampler.global_batch = kMicroBatches * kMicroBatch;
  sampler.micro_batch = kMicroBatch;
  sampler.sequence_length = static_cast<std::uint32_t>(options.length);
  sampler.validation_fraction = 0.1;
  PosixFileSystem files;
  const auto tokens = TokenFile::open(files, terms.tokens);
  terms.train_samples = static_cast<std::uint64_t>(
      Sampler::create(sampler, tokens.value().count()).value().train_samples());
  const auto report = check_ledger(terms);
  if (!report.ok()) {
    faults.push_back(report.error().to_string());
    return faults;
  }
  std::printf("    %llu samples once each, %llu micro-batches recomputed\n",
              static_cast<unsigned long long>(report.value().samples),
              static_cast<unsigned long long>(report.value().recomputed));
  faults.insert(faults.end(), report.value().faults.begin(), report.value().faults.end());
  return faults;
}

}  // namespace rubato::worker
