// check_ledger: did each sample count exactly once? Reads the ledgers of a run's workers
// (ledger_checker.h), prints what was counted as JSON; faults go to stderr, and the status is 1.
#include "tests/integration/worker/ledger_checker.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"

#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

struct Options {
  LedgerTerms terms;
  SamplerConfig sampler;
};

Result<LedgerReport> run(Options options) {
  LedgerTerms& terms = options.terms;
  PosixFileSystem files;
  TRY(const TokenFile tokens, TokenFile::open(files, terms.tokens));
  TRY(const Sampler sampler, Sampler::create(options.sampler, tokens.count()));
  terms.micro_batches = static_cast<std::uint32_t>(sampler.micro_batches());
  terms.micro_batch = static_cast<std::uint32_t>(options.sampler.micro_batch);
  terms.sequence_length = static_cast<std::uint32_t>(options.sampler.sequence_length);
  terms.train_samples = static_cast<std::uint64_t>(sampler.train_samples());
  return check_ledger(terms);
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app{
      "Checks what the workers of a run fed to the model: every micro-batch of every step once,\n"
      "every sample once in its epoch, its tokens as in the token file."};
  rubato::worker::Options options;
  auto& terms = options.terms;
  app.add_option("folder", terms.folder, "Folder with the *.jsonl of the run")->required();
  app.add_option("--reference", terms.reference, "The same of an undisturbed run");
  app.add_option("--tokens", terms.tokens, "Token file")->required();
  app.add_option("--steps", terms.steps, "Steps that must be there")->required();
  app.add_option("--global-batch", options.sampler.global_batch)->required();
  app.add_option("--micro-batch", options.sampler.micro_batch)->required();
  app.add_option("--sequence-length", options.sampler.sequence_length)->required();
  app.add_option("--validation-fraction", options.sampler.validation_fraction)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const auto report = rubato::worker::run(std::move(options));
  if (!report.ok()) {
    std::fprintf(stderr, "check_ledger: %s\n", report.error().to_string().c_str());
    return 2;
  }
  const auto n = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "{\"steps\":%llu,\"samples\":%llu,\"forwards\":%llu,\"recomputed\":%llu,"
      "\"redone\":%llu}\n",
      n(report->steps), n(report->samples), n(report->forwards), n(report->recomputed),
      n(report->redone));
  for (const std::string& fault : report->faults) std::fprintf(stderr, "%s\n", fault.c_str());
  return report->faults.empty() ? 0 : 1;
}
