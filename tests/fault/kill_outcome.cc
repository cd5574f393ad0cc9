#include "tests/fault/kill_outcome.h"

#include "common/files.h"
#include "tests/integration/worker/ledger_checker.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"

#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace rubato::fault {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Outcome outcome_of(const fs::path& folder) {
  const fs::path last = folder / "ckpt" / fmt::format("step-{:08}", kSteps);
  return {read_file(folder / "ckpt/steps.bin"), read_file(last / "model.safetensors"),
          read_file(last / "optimizer.safetensors"), folder / "ckpt/ledger", folder / "tokens.bin"};
}

std::string compare(const Outcome& outcome, const Outcome& reference, std::uint32_t micro_batches) {
  if (outcome.steps.size() != kSteps * 32) return "steps.bin is not complete";
  if (outcome.steps != reference.steps) return "loss bytes differ";
  if (outcome.weights.empty() || outcome.weights != reference.weights) return "weights differ";
  if (outcome.moments != reference.moments) return "optimizer state differs";
  worker::LedgerTerms terms;
  terms.folder = outcome.ledger;
  terms.reference = reference.ledger;
  terms.tokens = outcome.tokens;
  terms.micro_batches = micro_batches;
  terms.micro_batch = kMicro;
  terms.sequence_length = kLength;
  terms.steps = kSteps;
  worker::SamplerConfig sampler;
  sampler.global_batch = static_cast<int>(micro_batches) * kMicro;
  sampler.micro_batch = kMicro;
  sampler.sequence_length = kLength;
  sampler.validation_fraction = kValidation;
  PosixFileSystem files;
  const auto tokens = worker::TokenFile::open(files, outcome.tokens);
  if (!tokens.ok()) return tokens.error().to_string();
  terms.train_samples = static_cast<std::uint64_t>(
      worker::Sampler::create(sampler, tokens->count()).value().train_samples());
  const auto report = worker::check_ledger(terms);
  if (!report.ok()) return report.error().to_string();
  return report->faults.empty() ? "" : "ledger: " + report->faults.front();
}

}  // namespace rubato::fault
