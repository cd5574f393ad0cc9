// worker_alone: rubato-worker processes without Kubernetes. Runs one job undisturbed with one
// worker, then again under each scripted story (more workers, kills at named phases, a join, a
// leave, a freeze, stop and resume at another size), and demands equal loss bytes, equal weights,
// and every sample exactly once.
//   worker_alone [--worker PROGRAM] [--folder DIR] [--steps N] [--seeds N] [--first-seed S]
//   [--keep] [story…]
#include "tests/integration/worker/stories.h"
#include "tests/unit/worker/support/job_secret.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace rubato::worker {
namespace {

int play(const Options& options) {
  std::filesystem::create_directories(options.folder);
  write_tokens(options);
  const JobSecret secret("job-1");
  const SystemClock clock;
  Stage undisturbed(options, "undisturbed", secret.dir());
  run_with(undisturbed, 1);
  const Outcome reference = undisturbed.outcome();
  int failed = 0;
  for (const auto& [name, story] : all_stories(options)) {
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
      Stage stage(options, folder, secret.dir());
      story(stage);
      faults = compare(options, stage.outcome(), reference);
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
  options.program =
      (std::filesystem::path(argv[0]).parent_path() / "../bin/rubato-worker").string();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_next = i + 1 < argc;
    if (word == "--worker" && has_next) {
      options.program = argv[++i];
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
