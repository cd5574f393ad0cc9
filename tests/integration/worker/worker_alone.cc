// worker_alone: rubato-worker processes without Kubernetes. Runs one job undisturbed with one
// worker, then again under each scripted story (more workers, kills at named phases, a join, a
// leave, a freeze, stop and resume at another size), and demands equal loss bytes, equal weights,
// and every sample exactly once.
//   worker_alone [--worker PROGRAM] [--folder DIR] [--steps N] [--seeds N] [--first-seed S]
//   [--keep] [story…]
#include "common/rng.h"
#include "tests/integration/worker/crew.h"
#include "tests/integration/worker/ledger_checker.h"
#include "tests/unit/worker/support/job_secret.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace rubato::worker {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t kMicroBatches = 8;
constexpr std::uint32_t kMicroBatch = 2;
constexpr std::uint32_t kLength = 64;

struct Options {
  std::string program;
  std::string folder;
  std::uint64_t steps = 30;
  std::uint64_t seeds = 4;  // of chaos
  std::uint64_t first_seed = 1;
  std::uint64_t layers = 2;
  std::uint64_t hidden = 64;
  bool keep = false;
  std::vector<std::string> stories;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Text with some structure, so that the loss falls: words of a small vocabulary.
void write_tokens(const std::string& path) {
  auto writer = TokenFileWriter::create(path, 256);
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

std::string training_json(const Options& options, const std::string& checkpoints) {
  return fmt::format(
      R"({{"model":{{"family":"gpt2","layers":{},"hidden":{},"heads":2,"vocab":256}},)"
      R"("data":{{"path":"{}/tokens.bin","validationFraction":0.1}},)"
      R"("batch":{{"global":{},"micro":{},"sequenceLength":{}}},)"
      R"("optimizer":{{"name":"adamw","learningRate":0.003,"weightDecay":0.1,"gradientClip":1.0,)"
      R"("schedule":{{"warmupSteps":5,"decay":"cosine","minLearningRate":0.0001}}}},)"
      R"("stop":{{"steps":{}}},"seed":42,"evaluateEvery":10,"reduce":"exact",)"
      R"("checkpoint":{{"every":12,"path":"{}","keep":3}}}})",
      options.layers, options.hidden, options.folder, kMicroBatches * kMicroBatch, kMicroBatch,
      kLength, options.steps, checkpoints);
}

// What a story leaves behind.
struct Outcome {
  std::string steps;    // steps.bin
  std::string weights;  // model.safetensors of the last checkpoint
  std::string moments;  // optimizer.safetensors
  std::string ledger;
};

class Stage {
 public:
  Stage(const Options& options, const std::string& name, const std::string& secret_dir)
      : options_(options), folder_(options.folder + "/" + name) {
    fs::create_directories(folder_);
    config_.program = options.program;
    config_.folder = folder_;
    config_.secret_dir = secret_dir;
    config_.training = training_json(options, folder_ + "/checkpoints");
    config_.micro_batches = kMicroBatches;
  }
  // A fresh set of processes; a story that stops and resumes asks twice.
  Crew& crew() {
    if (crew_) config_.first_generation = crew_->generation() + 1;
    crew_.reset();
    config_.first_pod = 100 * crews_;
    config_.folder = fmt::format("{}/crew-{}", folder_, crews_++);
    fs::create_directories(config_.folder);
    return *(crew_ = std::make_unique<Crew>(config_));
  }
  std::uint64_t steps() const { return options_.steps; }
  Outcome outcome() const {
    const std::string last = fmt::format("{}/checkpoints/step-{:08}", folder_, options_.steps);
    return {read_file(folder_ + "/checkpoints/steps.bin"), read_file(last + "/model.safetensors"),
            read_file(last + "/optimizer.safetensors"), folder_ + "/checkpoints/ledger"};
  }

 private:
  const Options& options_;
  std::string folder_;
  CrewConfig config_;
  std::unique_ptr<Crew> crew_;
  int crews_ = 0;
};

using Story = std::function<void(Stage&)>;

void run_with(Stage& stage, int size, const std::string& fault = "") {
  Crew& crew = stage.crew();
  std::vector<int> members;
  for (int i = 0; i < size; ++i) members.push_back(crew.spawn(i == 1 ? fault : ""));
  crew.start(members);
  crew.finish();
  const int expected = fault.empty() ? 0 : 1;
  if (crew.recoveries() != expected) {
    throw std::runtime_error(
        fmt::format("{} recoveries, expected {}", crew.recoveries(), expected));
  }
}

void joins(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  const int newcomer = crew.spawn();
  crew.start({a, b});
  crew.until_step(2);
  if (!crew.join(newcomer, a) || crew.recoveries() != 0) {
    throw std::runtime_error("the newcomer did not join as planned");
  }
  std::printf("    stall of the join: %.3f s; a step takes %.3f s\n", crew.stall_max(),
              crew.worker(a).standing.step_seconds());
  crew.finish();
}

void leaves(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  const int c = crew.spawn();
  crew.start({a, b, c});
  crew.until_step(3);
  crew.leave(a);  // rank 0: another takes over the exports and checkpoints
  crew.finish();
}

void newcomer_dies(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  const int newcomer = crew.spawn("form:*:kill");  // as soon as it is asked to switch or recover
  crew.start({a, b});
  crew.until_step(2);
  crew.signal(newcomer, SIGKILL);
  crew.until_step(6);
  const int second = crew.spawn();
  crew.join(second, b);
  crew.finish();
}

void freezes(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  const int c = crew.spawn();
  crew.start({a, b, c});
  crew.until_step(4);
  crew.signal(b, SIGSTOP);
  crew.recover({b});  // silence: fenced and left out
  crew.until_step(8);
  crew.signal(b, SIGCONT);  // the zombie finds its links cut, and is asked to follow anew
  crew.until("the zombie speaks", [&] { return crew.worker(b).standing.phase() != 0; });
  crew.join(b, a);
  crew.finish();
}

void stops_and_resumes(Stage& stage) {
  std::uint64_t at = 0;
  {
    Crew& crew = stage.crew();
    const int a = crew.spawn();
    const int b = crew.spawn();
    crew.start({a, b});
    crew.until_step(5);
    crew.request(true, true);
    crew.until("stopped", [&] {
      return crew.worker(a).standing.phase() == wire::WORKER_STOPPED &&
             crew.worker(b).standing.phase() == wire::WORKER_STOPPED;
    });
    at = crew.checkpoint_step();
    if (at == 0) throw std::runtime_error("stopped without a checkpoint");
    crew.retire(a);
    crew.retire(b);
  }
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  const int c = crew.spawn();
  if (crew.worker(c).standing.checkpoint_step() != at)
    throw std::runtime_error("checkpoint unseen");
  crew.start({a, b, c}, at);
  crew.finish();
}

void all_die(Stage& stage) {
  {
    Crew& crew = stage.crew();
    const int a = crew.spawn();
    const int b = crew.spawn();
    crew.start({a, b});
    crew.until("a checkpoint", [&] { return crew.checkpoint_step() >= 12; });
    crew.signal(a, SIGKILL);
    crew.signal(b, SIGKILL);
  }
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const std::uint64_t newest = crew.worker(a).standing.checkpoint_step();
  if (newest < 12) throw std::runtime_error("no checkpoint to resume from");
  crew.start({a}, newest);
  crew.finish();
}

// Kills, freezes, joins and leaves at random moments; the seed tells which.
void chaos(Stage& stage, std::uint64_t seed) {
  Rng rng(seed);
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn();
  std::vector<int> spares{crew.spawn(), crew.spawn(), crew.spawn()};
  crew.start({a, b});
  std::uint64_t step = 0;
  std::string tale;
  while ((step = crew.step() + rng.below(4)) + 6 < stage.steps()) {
    crew.until_step(step);
    const std::vector<int> members = crew.members();
    const int chosen = members[rng.below(members.size())];
    const std::uint64_t dice = rng.below(3);
    if (dice == 0 && members.size() > 1) {
      tale += fmt::format(" {}:kill({})", step, chosen);
      const int before = crew.recoveries();
      crew.signal(chosen, SIGKILL);
      crew.until("the recovery", [&] { return crew.recoveries() > before; });
    } else if (dice == 1 && members.size() > 1) {
      tale += fmt::format(" {}:freeze({})", step, chosen);
      crew.signal(chosen, SIGSTOP);
      crew.recover({chosen});
      crew.signal(chosen, SIGCONT);
      spares.push_back(chosen);
    } else if (!spares.empty() && members.size() < 4) {
      const int newcomer = spares.front();
      spares.erase(spares.begin());
      tale += fmt::format(" {}:join({})", step, newcomer);
      if (!crew.join(newcomer, chosen) && crew.worker(newcomer).is_alive()) {
        spares.push_back(newcomer);
        tale += "-";
      }
    }
  }
  std::printf("    seed %llu:%s\n", static_cast<unsigned long long>(seed), tale.c_str());
  crew.finish();
}

std::vector<std::pair<std::string, Story>> all_stories(const Options& options) {
  std::vector<std::pair<std::string, Story>> stories{
      {"two workers", [](Stage& stage) { run_with(stage, 2); }},
      {"three workers", [](Stage& stage) { run_with(stage, 3); }},
  };
  for (const std::string phase : {"compute", "accumulate", "reduce", "commit", "apply"}) {
    stories.emplace_back("killed in " + phase,
                         [phase](Stage& stage) { run_with(stage, 3, phase + ":10:kill"); });
  }
  stories.emplace_back("a join", joins);
  stories.emplace_back("a leave", leaves);
  stories.emplace_back("a newcomer dies", newcomer_dies);
  stories.emplace_back("a freeze", freezes);
  stories.emplace_back("stop and resume with three", stops_and_resumes);
  stories.emplace_back("all die, one resumes", all_die);
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    stories.emplace_back(fmt::format("chaos {}", seed),
                         [seed](Stage& stage) { chaos(stage, seed); });
  }
  return stories;
}

std::vector<std::string> compare(const Options& options, const Outcome& outcome,
                                 const Outcome& reference) {
  std::vector<std::string> faults;
  if (outcome.steps.size() != options.steps * 32) faults.push_back("steps.bin is incomplete");
  if (outcome.steps != reference.steps) faults.push_back("loss bytes differ");
  if (outcome.weights.empty() || outcome.weights != reference.weights) {
    faults.push_back("weights differ");
  }
  if (outcome.moments != reference.moments) faults.push_back("optimizer state differs");
  LedgerTerms terms;
  terms.folder = outcome.ledger;
  terms.reference = reference.ledger;
  terms.tokens = options.folder + "/tokens.bin";
  terms.micro_batches = kMicroBatches;
  terms.micro_batch = kMicroBatch;
  terms.sequence_length = kLength;
  terms.steps = options.steps;
  SamplerConfig sampler;
  sampler.global_batch = kMicroBatches * kMicroBatch;
  sampler.micro_batch = kMicroBatch;
  sampler.sequence_length = kLength;
  sampler.validation_fraction = 0.1;
  const auto tokens = TokenFile::open(terms.tokens);
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

int play(const Options& options) {
  fs::create_directories(options.folder);
  write_tokens(options.folder + "/tokens.bin");
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
      faults.push_back(error.what());
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
