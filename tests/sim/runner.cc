#include "tests/sim/runner.h"

#include "tests/sim/round_log.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::sim {
namespace {

constexpr std::uint64_t kPreparedSteps = 1000;

using RealClock = std::chrono::steady_clock;

// What travels from a story's process to ours: numbers, then the text. Less than a pipe holds,
// since nobody reads before the story's end.
struct Wire {
  int ok;
  double virtual_seconds;
  std::uint64_t decisions, generations, members, writes, lives, digest;
  Coverage coverage;
};
constexpr std::size_t kTextMost = 4000;
static_assert(sizeof(Wire) + kTextMost < 65'536);

struct Child {
  Trial trial;
  int pipe = -1;
  RealClock::time_point began;
};

void write_all(int to, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(to, at, size);
    if (n <= 0) return;
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

std::string read_all(int from) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(from, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

pid_t begin(const Trial& trial, Child& child) {
  prepare(scenario_of(trial));
  int ends[2];
  CHECK(::pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    ::close(ends[0]);
    constexpr rlimit kLimit{kStoryLimit.count(), kStoryLimit.count() + 1};
    CHECK(::setrlimit(RLIMIT_CPU, &kLimit) == 0);
    ::alarm(kStoryRealLimit.count());
    const RunResult result = run_here(trial);
    const Wire wire{.ok = result.ok ? 1 : 0,
                    .virtual_seconds = result.virtual_seconds,
                    .decisions = result.decisions,
                    .generations = result.generations,
                    .members = result.members,
                    .writes = result.writes,
                    .lives = result.lives,
                    .digest = result.digest,
                    .coverage = result.coverage};
    write_all(ends[1], &wire, sizeof wire);
    write_all(ends[1], result.what.data(), std::min(result.what.size(), kTextMost));
    std::fflush(nullptr);
    ::_exit(0);
  }
  ::close(ends[1]);
  child = {trial, ends[0], RealClock::now()};
  return pid;
}

Outcome end(const Child& child, int status) {
  Outcome outcome;
  outcome.trial = child.trial;
  outcome.real_seconds = std::chrono::duration<double>(RealClock::now() - child.began).count();
  const std::string text = read_all(child.pipe);
  ::close(child.pipe);
  Wire wire{};
  if (text.size() >= sizeof wire && WIFEXITED(status)) {
    std::memcpy(&wire, text.data(), sizeof wire);
    outcome.result.ok = wire.ok != 0;
    outcome.result.what = text.substr(sizeof wire);
    outcome.result.virtual_seconds = wire.virtual_seconds;
    outcome.result.decisions = wire.decisions;
    outcome.result.generations = wire.generations;
    outcome.result.members = wire.members;
    outcome.result.writes = wire.writes;
    outcome.result.lives = wire.lives;
    outcome.result.digest = wire.digest;
    outcome.result.coverage = wire.coverage;
  } else if (WIFSIGNALED(status)) {
    outcome.result.what = WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGXCPU
                              ? "the story took too long"
                              : fmt::format("the story ended by signal {}", WTERMSIG(status));
  } else {
    outcome.result.what = "the story ended without a word";
  }
  return outcome;
}

}  // namespace

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int n : numbers) text += (text.empty() ? "" : ",") + std::to_string(n);
  return text.empty() ? "none" : text;
}

Scenario scenario_of(const Trial& trial) {
  Scenario scenario =
      trial.sweep ? sweep_scenario(trial.crash) : draw_scenario(trial.seed, trial.faults);
  if (!trial.selected) return scenario;
  std::vector<Fault> kept;
  for (const int number : trial.keep)
    if (number >= 0 && number < static_cast<int>(scenario.faults.size()))
      kept.push_back(scenario.faults[static_cast<std::size_t>(number)]);
  scenario.faults = std::move(kept);
  return scenario;
}

void prepare(const Scenario& scenario) {
  authority();
  for (const JobPlan& job : scenario.jobs)
    if (job.can_finish && job.shape.steps <= kPreparedSteps) ReferenceRun::prepare(job.shape);
}

RunResult run_here(const Trial& trial) {
  RunOptions options{.aloud = trial.aloud};
  if (!trial.record.empty()) options.record = RoundLog(trial.record, trial.seed);
  return WholeCluster(scenario_of(trial), std::move(options)).run();
}

void run_all(int jobs, const std::function<std::optional<Trial>()>& next,
             const std::function<bool(const Outcome&)>& done) {
  std::map<pid_t, Child> running;
  bool more = true;
  while (true) {
    while (more && static_cast<int>(running.size()) < jobs) {
      const std::optional<Trial> trial = next();
      if (!trial) {
        more = false;
        break;
      }
      Child child;
      const pid_t pid = begin(*trial, child);
      running[pid] = std::move(child);
    }
    if (running.empty()) return;
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    const auto found = running.find(pid);
    if (found == running.end()) continue;
    const Outcome outcome = end(found->second, status);
    running.erase(found);
    if (!done(outcome)) {
      for (const auto& [other, child] : running) ::kill(other, SIGKILL);
      for (const auto& [other, child] : running) {
        ::waitpid(other, &status, 0);
        ::close(child.pipe);
      }
      return;
    }
  }
}

std::string replay_command(const Trial& trial) {
  std::string text = trial.sweep ? "sim --sweep-writes" : fmt::format("sim --seed {}", trial.seed);
  if (trial.crash) text += fmt::format(" --crash {}", *trial.crash);
  if (trial.faults >= 0) text += fmt::format(" --faults {}", trial.faults);
  if (trial.selected) text += " --only " + joined(trial.keep);
  return text + " --verbose";
}

Outcome run_apart(const Trial& trial) {
  std::optional<Trial> one = trial;
  Outcome outcome;
  run_all(
      1, [&] { return std::exchange(one, std::nullopt); },
      [&](const Outcome& o) {
        outcome = o;
        return true;
      });
  return outcome;
}

Trial shrink(Trial trial, int jobs, int tries) {
  if (!trial.selected) {
    trial.keep.resize(scenario_of(trial).faults.size());
    std::iota(trial.keep.begin(), trial.keep.end(), 0);
    trial.selected = true;
  }
  std::size_t chunk = std::max<std::size_t>(1, trial.keep.size() / 2);
  while (tries > 0 && !trial.keep.empty()) {
    // All ways to leave one chunk out, several at a time; the first that fails is taken.
    std::size_t from = 0;
    std::optional<Trial> smaller;
    run_all(
        jobs,
        [&]() -> std::optional<Trial> {
          if (from >= trial.keep.size() || tries <= 0) return std::nullopt;
          Trial fewer = trial;
          const auto first = fewer.keep.begin() + static_cast<std::ptrdiff_t>(from);
          const std::size_t count = std::min(chunk, fewer.keep.size() - from);
          fewer.keep.erase(first, first + static_cast<std::ptrdiff_t>(count));
          from += chunk;
          --tries;
          return fewer;
        },
        [&](const Outcome& outcome) {
          if (!outcome.result.ok) smaller = outcome.trial;
          return outcome.result.ok;
        });
    if (smaller) {
      trial = *smaller;
      chunk = std::max<std::size_t>(1, std::min(chunk, trial.keep.size() / 2));
    } else if (chunk == 1) {
      break;
    } else {
      chunk = std::max<std::size_t>(1, chunk / 2);
    }
  }
  return trial;
}

}  // namespace rubato::sim
