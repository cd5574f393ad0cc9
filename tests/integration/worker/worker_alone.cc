// worker_alone: rubato-worker processes without Kubernetes. Runs one job undisturbed with one
// worker, then again under each scripted story (more workers, kills at named phases, a join, a
// leave, a freeze, stop and resume at another size), and demands equal loss bytes, equal weights,
// and every sample exactly once.
// The last story is of the worker that ships: it heeds no fault plan and writes no ledger.
//   worker_alone [--worker PROGRAM] [--shipped PROGRAM] [--folder DIR] [--steps N] [--seeds N]
//   [--first-seed S]
//   [--family gpt2|llama] [--device cpu|deferred|cuda] [--collective links|nccl]
//   [--precision f32|bf16] [--keep] [story…]
// Ends with 77 where the processor has no bf16.
#include "tests/integration/worker/stories.h"
#include "tests/unit/worker/support/job_secret.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace rubato::worker {
namespace {

constexpr int kNoDevice = 77;

std::vector<std::string> compare_shipped(const Outcome& outcome, const Outcome& reference) {
  std::vector<std::string> faults;
  if (outcome.steps != reference.steps) faults.emplace_back("loss bytes differ");
  if (outcome.weights != reference.weights) faults.emplace_back("weights differ");
  if (std::filesystem::exists(outcome.ledger)) faults.emplace_back("it has written a ledger");
  return faults;
}

int play(const Options& options) {
  if (const auto device = open_device({.precision = options.precision}); !device.ok()) {
    std::printf("%s\n", device.error().what().c_str());
    return kNoDevice;
  }
  std::filesystem::create_directories(options.folder);
  write_tokens(options);
  if (options.family == "llama") write_first_weights(options);
  const JobSecret secret("job-1");
  const SystemClock clock;
  Stage undisturbed(options, "undisturbed", secret.dir());
  run_with(undisturbed, 1);
  const Outcome reference = undisturbed.outcome();
  int failed = 0;
  Options shipped = options;
  shipped.program = options.shipped;
  if (options.device == "deferred") shipped.device.clear();  // it knows no such kind; equal bits
  auto stories = all_stories(options);
  stories.emplace_back("the worker that ships", heeds_no_fault);
  for (const auto& [name, story] : stories) {
    const bool ships = name == "the worker that ships";
    if (!options.stories.empty() &&
        std::ranges::none_of(options.stories,
                             [&](const std::string& s) { return name.starts_with(s); })) {
      continue;
    }
    const MonoTime begun = clock.now();
    std::vector<std::string> faults;
    try {
      std::string folder = name;
      std::replace(folder.begin(), folder.end(), ' ', '-');
      std::replace(folder.begin(), folder.end(), ',', '-');
      Stage stage(ships ? shipped : options, folder, secret.dir());
      story(stage);
      faults = ships ? compare_shipped(stage.outcome(), reference)
                     : compare(options, stage.outcome(), reference);
    } catch (const std::exception& error) {
      faults.emplace_back(error.what());
    }
    const double seconds = std::chrono::duration<double>(clock.now() - begun).count();
    std::printf("%-28s %s  %.2f s\n", name.c_str(), faults.empty() ? "equal" : "DIFFERS", seconds);
    for (const std::string& fault : faults) std::printf("    %s\n", fault.c_str());
    std::fflush(stdout);
    failed += faults.empty() ? 0 : 1;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  rubato::worker::Options options;
  const auto programs = std::filesystem::path(argv[0]).parent_path() / "../bin";
  options.program = programs / "testing/rubato-worker";
  options.shipped = programs / "rubato-worker";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_next = i + 1 < argc;
    if (word == "--worker" && has_next) {
      options.program = argv[++i];
    } else if (word == "--shipped" && has_next) {
      options.shipped = argv[++i];
    } else if (word == "--folder" && has_next) {
      options.folder = argv[++i];
    } else if (word == "--steps" && has_next) {
      options.steps = std::stoull(argv[++i]);
    } else if (word == "--seeds" && has_next) {
      options.seeds = std::stoull(argv[++i]);
    } else if (word == "--first-seed" && has_next) {
      options.first_seed = std::stoull(argv[++i]);
    } else if (word == "--layers" && has_next) {
      options.layers = std::stoull(argv[++i]);
    } else if (word == "--hidden" && has_next) {
      options.hidden = std::stoull(argv[++i]);
    } else if (word == "--length" && has_next) {
      options.length = std::stoull(argv[++i]);
    } else if (word == "--family" && has_next) {
      options.family = argv[++i];
    } else if (word == "--device" && has_next) {
      options.device = argv[++i];
    } else if (word == "--collective" && has_next) {
      options.collective = argv[++i];
    } else if (word == "--precision" && has_next) {
      const bool is_bf16 = std::string(argv[++i]) == "bf16";
      options.precision = is_bf16 ? rubato::worker::Precision::kBf16 : options.precision;
    } else if (word == "--keep") {
      options.keep = true;
    } else {
      options.stories.push_back(word);
    }
  }
  if (options.folder.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "rubato-alone-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) return 2;
    options.folder = pattern;
  }
  const int status = rubato::worker::play(options);
  if (status != 0 || options.keep) {
    std::printf("files: %s\n", options.folder.c_str());
  } else {
    std::filesystem::remove_all(options.folder);
  }
  return status;
}
