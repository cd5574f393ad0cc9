// sim: the whole operator through seeded trouble in virtual time.
//   sim --seeds 1000 [--seed N]    N … N+999; prints seed, command and timeline of each that fails
//   sim --seed 7 --verbose         one story, told line by line
//   sim --seed 7 --only 2,5        … with faults 2 and 5 of its plan only
//   sim --soak FOLDER --seeds 100000 [--seed N] [--commit NAME]    may be interrupted and goes on
//   where
//                                  it was; tells which faults met workers where
//   sim --seeds 300 --record FOLDER
//                                  what the operators decide on, as snapshots with their plans
//   sim --sweep-writes             one short story, as often as its operators write something: each
//                                  time one of them dies before or after another of the writes
#include "tests/sim/soak.h"
#include "tests/sim/tally.h"

#include <cstdlib>
#include <functional>
#include <sstream>
#include <thread>

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
  std::string soak;
  std::string commit = "unknown";
};

int usage() {
  fmt::print(stderr,
             "usage: sim [--seed N] [--seeds COUNT] [--jobs N] [--faults COUNT] [--only N,N…] "
             "[--sweep-writes [--crash N]] [--no-shrink] [--plan] [--verbose] "
             "[--record FOLDER] [--soak FOLDER [--commit NAME]]\n");
  return 2;
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
    else if (word == "--soak")
      arguments.soak = value();
    else if (word == "--record")
      arguments.trial.record = value();
    else if (word == "--commit")
      arguments.commit = value();
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
    fmt::print(
        "  node {}: {} GPUs ({}){}\n", node.name, node.gpus, node.gpu_type,
        node.added_at > Duration(0) ? fmt::format(", from {} ms on", node.added_at / 1ms) : "");
  if (scenario.policy)
    fmt::print("  policy: rounds of {} s, {} s between growths, {} growths a round\n",
               scenario.policy->round_seconds, scenario.policy->growth_pause_seconds,
               scenario.policy->grown_per_round);
  for (const QueuePlan& queue : scenario.queues)
    if (queue.cells > 0)
      fmt::print("  queue {}: {} whole nodes are its own\n", queue.name, queue.cells);
  for (const JobPlan& job : scenario.jobs)
    fmt::print("  job {}: {}-{} GPUs, {} a pod, queue {}{}, {} steps\n", job.shape.name, job.min,
               job.max, job.per_pod, job.queue,
               job.priority_class.empty() ? "" : ", " + job.priority_class, job.shape.last_step());
  if (scenario.old_builds > 0)
    fmt::print("  workers of the build before in {:.0f} % of the pods\n",
               100 * scenario.old_builds);
  if (scenario.pieces > 0)
    fmt::print("  links between workers move at most {} bytes at once\n", scenario.pieces);
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
  fmt::print("  fewest faults found: {}\n  replay: {}\n", joined(small.keep),
             replay_command(small));
  tell_plan(small);
  fmt::print("  ---- timeline of the smaller story\n");
  small.aloud = true;
  (void)run_apart(small);
  fmt::print("  ----\n");
}

Totals run_many(const Arguments& arguments, std::uint64_t count,
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
  return tally.totals();
}

int run_seeds(const Arguments& arguments) {
  const Totals totals = run_many(arguments, arguments.seeds, [&](std::uint64_t number) {
    Trial trial = arguments.trial;
    trial.seed += number;
    return trial;
  });
  const bool as_drawn = arguments.trial.faults < 0 && !arguments.trial.selected;
  const std::string shortage = as_drawn ? shortage_of(totals) : "";
  if (!shortage.empty()) fmt::print("{}\n", shortage);
  return totals.failed.empty() && shortage.empty() ? 0 : 1;
}

// One story undisturbed, to count its writes; then as often as it has ends of a write.
int sweep_writes(const Arguments& arguments) {
  const Outcome first = run_apart(arguments.trial);
  if (!first.result.ok) {
    fmt::print("undisturbed: {}\n  replay: {}\n", first.result.what,
               replay_command(arguments.trial));
    return 1;
  }
  fmt::print("{} writes in {:.0f} virtual seconds; an operator dies before and after each\n",
             first.result.writes, first.result.virtual_seconds);
  const Totals totals = run_many(arguments, 2 * first.result.writes, [&](std::uint64_t number) {
    Trial trial = arguments.trial;
    trial.crash = 2 + number;  // writes count from 1
    return trial;
  });
  return totals.failed.empty() ? 0 : 1;
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
  if (!arguments.soak.empty())
    return soak({.folder = arguments.soak,
                 .commit = arguments.commit,
                 .first = arguments.trial.seed,
                 .stories = arguments.seeds,
                 .jobs = arguments.jobs});
  return run_seeds(arguments);
}

}  // namespace
}  // namespace rubato::sim

int main(int argc, char** argv) {
  rubato::sim::Arguments arguments;
  if (!rubato::sim::parse(argc, argv, arguments)) return rubato::sim::usage();
  return rubato::sim::run(arguments);
}
