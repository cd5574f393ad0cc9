#include "tests/integration/worker/stories.h"

#include "common/rng.h"

#include <csignal>
#include <cstdio>
#include <stdexcept>

#include <fmt/format.h>
#include <sys/wait.h>

namespace rubato::worker {

void run_with(Stage& stage, int size, const std::string& fault) {
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

void heeds_no_fault(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn("compute:1:kill");
  const int b = crew.spawn("reduce:*:stop");
  crew.start({a, b});
  crew.finish();
  if (crew.recoveries() != 0) throw std::runtime_error("it heeded a fault plan");
}

namespace {
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

// In the middle of its steps: a start takes some 80 waits of this device, all thirty steps 400
// more.
void loses_its_device(Stage& stage) {
  Crew& crew = stage.crew();
  const int a = crew.spawn();
  const int b = crew.spawn("", "deferred:250");
  const int c = crew.spawn();
  crew.start({a, b, c});
  crew.finish();
  const CrewWorker& lost = crew.worker(b);
  const int status = lost.wait_status.value_or(0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kStuckStatus || crew.recoveries() != 1)
    throw std::runtime_error(fmt::format("{} recoveries, and its process ended with wait status {}",
                                         crew.recoveries(), status));
  if (lost.failures.empty() || !lost.failures.back().starts_with(kDeviceLost))
    throw std::runtime_error("it did not say why");
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
}  // namespace

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
  if (options.device.empty() || options.device == "deferred")
    stories.emplace_back("a lost device", loses_its_device);
  stories.emplace_back("stop and resume with three", stops_and_resumes);
  stories.emplace_back("all die, one resumes", all_die);
  for (std::uint64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    stories.emplace_back(fmt::format("chaos {}", seed),
                         [seed](Stage& stage) { chaos(stage, seed); });
  }
  return stories;
}

}  // namespace rubato::worker
