// sim: the whole operator through seeded trouble in virtual time.
//   sim --seeds 1000 [--seed N]    N … N+999; prints seed, command and timeline of each that fails
//   sim --seed 7 --verbose         one story, told line by line
//   sim --seed 7 --only 2,5        … with faults 2 and 5 of its plan only
#include "tests/sim/runner.h"

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

#include <unistd.h>

namespace rubato::sim {
namespace {

constexpr int kShrinkTries = 120;
constexpr int kTimelinesMost = 3;  // failures told in full; the others by their first line

struct Arguments {
  Trial trial;
  std::uint64_t seeds = 1;
  int jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool shrink = true;
  bool plan = false;
};

int usage() {
  fmt::print(stderr,
             "usage: sim [--seed N] [--seeds COUNT] [--jobs N] [--faults COUNT] [--only N,N…] "
             "[--no-shrink] [--plan] [--verbose]\n");
  return 2;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text.empty() ? "none" : text;
}

std::string command(const Trial& trial) {
  std::string text = fmt::format("sim --seed {}", trial.seed);
  if (trial.faults >= 0) text += fmt::format(" --faults {}", trial.faults);
  if (trial.selected) text += " --only " + joined(trial.keep);
  return text + " --verbose";
}

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--seed")
      arguments.trial.seed = std::strtoull(value().c_str(), nullptr, 10);
    else if (word == "--seeds")
      arguments.seeds = std::strtoull(value().c_str(), nullptr, 10);
    else if (word == "--jobs")
      arguments.jobs = std::max(1, std::atoi(value().c_str()));
    else if (word == "--faults")
      arguments.trial.faults = std::atoi(value().c_str());
    else if (word == "--verbose")
      arguments.trial.aloud = true;
    else if (word == "--no-shrink")
      arguments.shrink = false;
    else if (word == "--plan")
      arguments.plan = true;
    else if (word == "--only") {
      arguments.trial.selected = true;
      std::stringstream parts(value());
      for (std::string part; std::getline(parts, part, ',');)
        if (part != "none") arguments.trial.keep.push_back(std::atoi(part.c_str()));
    } else {
      return false;
    }
  }
  return true;
}

void tell_plan(const Trial& trial) {
  const Scenario scenario = scenario_of(trial);
  for (const NodePlan& node : scenario.nodes)
    fmt::print("  node {}: {} GPUs ({})\n", node.name, node.gpus, node.gpu_type);
  for (const JobPlan& job : scenario.jobs)
    fmt::print("  job {}: {}-{} GPUs, {} a pod, queue {}{}, {} steps\n", job.shape.name, job.min,
               job.max, job.per_pod, job.queue,
               job.priority_class.empty() ? "" : ", " + job.priority_class, job.shape.steps);
  int number = 0;
  for (const Fault& fault : scenario.faults)
    fmt::print("  fault {}: {}\n",
               trial.selected ? trial.keep[static_cast<std::size_t>(number)] : number,
               to_string(fault)),
        ++number;
}

void tell_failure(const Trial& failed, const Arguments& arguments) {
  Trial small = failed;
  if (arguments.shrink) small = shrink(failed, arguments.jobs, kShrinkTries);
  fmt::print("  fewest faults found: {}\n  replay: {}\n", joined(small.keep), command(small));
  tell_plan(small);
  fmt::print("  ---- timeline of the smaller story\n");
  small.aloud = true;
  (void)run_apart(small);
  fmt::print("  ----\n");
}

int run(const Arguments& arguments) {
  if (arguments.plan) {
    tell_plan(arguments.trial);
    return 0;
  }
  if (arguments.trial.aloud) {
    const RunResult result = run_here(arguments.trial);
    fmt::print("seed {}: {} ({:016x})\n", arguments.trial.seed, result.ok ? "ok" : result.what,
               result.digest);
    return result.ok ? 0 : 1;
  }
  const auto began = std::chrono::steady_clock::now();
  const bool live = ::isatty(1) != 0;
  std::uint64_t started = 0;
  std::uint64_t ended = 0;
  double virtual_seconds = 0;
  std::uint64_t decisions = 0;
  std::uint64_t writes = 0;
  std::uint64_t lives = 0;
  std::vector<Outcome> failures;
  const auto progress = [&](const char* tail) {
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    fmt::print("{}{} of {} seeds, {} failed; {:.1f} seeds/s, {:.2f} virtual days per minute{}",
               live ? "\r" : "", ended, arguments.seeds, failures.size(),
               static_cast<double>(ended) / real, virtual_seconds / 86400 / (real / 60), tail);
    std::fflush(stdout);
  };
  run_all(
      arguments.jobs,
      [&]() -> std::optional<Trial> {
        if (started >= arguments.seeds) return std::nullopt;
        Trial trial = arguments.trial;
        trial.seed += started++;
        return trial;
      },
      [&](const Outcome& outcome) {
        ++ended;
        virtual_seconds += outcome.result.virtual_seconds;
        decisions += outcome.result.decisions;
        writes += outcome.result.writes;
        lives += outcome.result.lives;
        if (!outcome.result.ok) {
          fmt::print("{}seed {} failed: {}\n  replay: {}\n", live ? "\r\033[K" : "",
                     outcome.trial.seed, outcome.result.what, command(outcome.trial));
          failures.push_back(outcome);
        }
        if (live || ended % 100 == 0) progress(live ? "" : "\n");
        return true;
      });
  progress("\n");
  fmt::print(
      "{:.1f} virtual hours, {} rounds decided by workers, {} writes and {} lives of "
      "operators\n",
      virtual_seconds / 3600, decisions, writes, lives);
  int told = 0;
  for (const Outcome& failure : failures) {
    if (++told > kTimelinesMost) break;
    fmt::print("seed {}: {}\n", failure.trial.seed, failure.result.what);
    tell_failure(failure.trial, arguments);
  }
  return failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace rubato::sim

int main(int argc, char** argv) {
  rubato::sim::Arguments arguments;
  if (!rubato::sim::parse(argc, argv, arguments)) return rubato::sim::usage();
  return rubato::sim::run(arguments);
}
