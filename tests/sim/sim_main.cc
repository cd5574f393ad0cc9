// sim: the whole operator through seeded trouble in virtual time.
//   sim --seeds 1000 [--seed N]    N … N+999; prints seed, command and timeline of each that fails
//   sim --seed 7 --verbose         one story, told line by line
//   sim --seed 7 --only 2,5        … with faults 2 and 5 of its plan only
//   sim --sweep-writes             one short story, as often as its operators write something: each
//                                  time one of them dies before or after another of the writes
#include "tests/sim/runner.h"

#include <chrono>
#include <cstdlib>
#include <functional>
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
             "[--sweep-writes [--crash N]] [--no-shrink] [--plan] [--verbose]\n");
  return 2;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text.empty() ? "none" : text;
}

std::string command(const Trial& trial) {
  std::string text = trial.sweep ? "sim --sweep-writes" : fmt::format("sim --seed {}", trial.seed);
  if (trial.crash) text += fmt::format(" --crash {}", *trial.crash);
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
    else if (word == "--sweep-writes")
      arguments.trial.sweep = true;
    else if (word == "--crash")
      arguments.trial.crash = std::strtoull(value().c_str(), nullptr, 10);
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
  if (scenario.policy)
    fmt::print("  policy: rounds of {} s, {} s between growths, {} growths a round\n",
               scenario.policy->round_seconds, scenario.policy->growth_pause_seconds,
               scenario.policy->grown_per_round);
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

// Counts stories and tells how far they are.
class Tally {
 public:
  explicit Tally(std::uint64_t planned) : planned_(planned) {}

  void add(const Outcome& outcome) {
    ++ended_;
    virtual_seconds_ += outcome.result.virtual_seconds;
    decisions_ += outcome.result.decisions;
    writes_ += outcome.result.writes;
    lives_ += outcome.result.lives;
    if (!outcome.result.ok) {
      fmt::print("{}seed {} failed: {}\n  replay: {}\n", live_ ? "\r\033[K" : "",
                 outcome.trial.seed, outcome.result.what, command(outcome.trial));
      failures.push_back(outcome);
    }
    if (live_ || ended_ % 100 == 0) progress(live_ ? "" : "\n");
  }
  void tell_all() const {
    progress("\n");
    fmt::print(
        "{:.1f} virtual hours, {} rounds decided by workers, {} writes and {} lives of "
        "operators\n",
        virtual_seconds_ / 3600, decisions_, writes_, lives_);
  }

  std::vector<Outcome> failures;

 private:
  void progress(const char* tail) const {
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    fmt::print("{}{} of {} stories, {} failed; {:.1f} a second, {:.2f} virtual days per minute{}",
               live_ ? "\r" : "", ended_, planned_, failures.size(),
               static_cast<double>(ended_) / real, virtual_seconds_ / 86400 / (real / 60), tail);
    std::fflush(stdout);
  }

  const std::uint64_t planned_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const bool live_ = ::isatty(1) != 0;
  std::uint64_t ended_ = 0;
  double virtual_seconds_ = 0;
  std::uint64_t decisions_ = 0;
  std::uint64_t writes_ = 0;
  std::uint64_t lives_ = 0;
};

int run_many(const Arguments& arguments, std::uint64_t count,
             const std::function<Trial(std::uint64_t)>& trial_of) {
  std::uint64_t started = 0;
  Tally tally(count);
  run_all(
      arguments.jobs,
      [&]() -> std::optional<Trial> {
        if (started >= count) return std::nullopt;
        return trial_of(started++);
      },
      [&](const Outcome& outcome) {
        tally.add(outcome);
        return true;
      });
  tally.tell_all();
  int told = 0;
  for (const Outcome& failure : tally.failures) {
    if (++told > kTimelinesMost) break;
    fmt::print("seed {}: {}\n", failure.trial.seed, failure.result.what);
    tell_failure(failure.trial, arguments);
  }
  return tally.failures.empty() ? 0 : 1;
}

// One story undisturbed, to count its writes; then as often as it has ends of a write.
int sweep_writes(const Arguments& arguments) {
  const Outcome first = run_apart(arguments.trial);
  if (!first.result.ok) {
    fmt::print("undisturbed: {}\n  replay: {}\n", first.result.what, command(arguments.trial));
    return 1;
  }
  fmt::print("{} writes in {:.0f} virtual seconds; an operator dies before and after each\n",
             first.result.writes, first.result.virtual_seconds);
  return run_many(arguments, 2 * first.result.writes, [&](std::uint64_t number) {
    Trial trial = arguments.trial;
    trial.crash = 2 + number;  // writes count from 1
    return trial;
  });
}

int run(const Arguments& arguments) {
  if (arguments.plan) {
    tell_plan(arguments.trial);
    return 0;
  }
  if (arguments.trial.aloud) {
    const RunResult result = run_here(arguments.trial);
    fmt::print("seed {}: {} ({:016x}), {} writes\n", arguments.trial.seed,
               result.ok ? "ok" : result.what, result.digest, result.writes);
    return result.ok ? 0 : 1;
  }
  if (arguments.trial.sweep && !arguments.trial.crash) return sweep_writes(arguments);
  return run_many(arguments, arguments.seeds, [&](std::uint64_t number) {
    Trial trial = arguments.trial;
    trial.seed += number;
    return trial;
  });
}

}  // namespace
}  // namespace rubato::sim

int main(int argc, char** argv) {
  rubato::sim::Arguments arguments;
  if (!rubato::sim::parse(argc, argv, arguments)) return rubato::sim::usage();
  return rubato::sim::run(arguments);
}
