// kill_matrix: real agents and workers are killed, frozen and cut off at every named phase.
//   kill_matrix                   all cases
//   kill_matrix --telling         the few that `make test` runs
//   kill_matrix --only TEXT …     those whose name contains one of the texts
//   kill_matrix --slice I/N       every N-th, from the I-th (1 … N)
//   kill_matrix --list            their names
//   --results FILE                results are added to FILE; a case that it calls equal is not run
//   again
//   --page FILE                   writes the table into FILE (docs/reliability.md)
// A case that fails prints the command that repeats it, and where its files are.
#include "common/clock.h"
#include "tests/fault/kill_play.h"
#include "tests/fault/kill_report.h"
#include "tests/integration/coordinator/node_disks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::fault {
namespace {

constexpr int kNodes = 8;  // as many as a case has pods: six, a newcomer, a replacement

struct Options {
  std::vector<std::string> only;
  std::size_t slice = 1;
  std::size_t slices = 1;
  bool telling = false;
  bool list = false;
  std::string results;
  std::string page;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--telling") {
      options.telling = true;
    } else if (word == "--list") {
      options.list = true;
    } else if (value == nullptr) {  // NOLINT(bugprone-branch-clone): all that follow have one
      return false;
    } else if (word == "--only") {
      options.only.emplace_back(value);
    } else if (word == "--results") {
      options.results = value;
    } else if (word == "--page") {
      options.page = value;
    } else if (word == "--slice") {
      if (std::sscanf(value, "%zu/%zu", &options.slice, &options.slices) != 2) return false;
      if (options.slice < 1 || options.slice > options.slices) return false;
    } else {
      return false;
    }
    if (word != "--telling" && word != "--list") ++i;
  }
  return true;
}

std::vector<KillCase> chosen(const Options& options) {
  const std::vector<std::string> telling = telling_cases();
  std::vector<KillCase> cases;
  std::size_t number = 0;
  for (KillCase& one : all_cases()) {
    const std::string name = one.name();
    const bool is_wanted =
        options.only.empty() || std::ranges::any_of(options.only, [&](const std::string& text) {
          return name.find(text) != std::string::npos;
        });
    if (!is_wanted || (options.telling && std::ranges::find(telling, name) == telling.end()))
      continue;
    if (number++ % options.slices == options.slice - 1) cases.push_back(std::move(one));
  }
  return cases;
}

// What this machine cannot do is said; in CI it is a failure, so that no case is missed unseen.
int verdict_of(std::size_t skipped, std::size_t failed) {
  if (failed > 0) return 1;
  const char* const ci = std::getenv("CI");
  if (skipped == 0 || ci == nullptr || std::string(ci) != "true") return 0;
  std::printf("cases were skipped, and this is CI: failed\n");
  return 1;
}

int run(const Options& options, NodeNetworks* networks, bool disks) {
  std::vector<KillCase> cases = chosen(options);
  const bool is_whole = options.telling && options.only.empty() && options.slices == 1;
  if (is_whole && cases.size() != telling_cases().size()) {
    std::fprintf(stderr, "a telling case is none of all cases\n");
    return 2;
  }
  const Findings before = options.results.empty() ? Findings{} : read_findings(options.results);
  std::erase_if(cases, [&](const KillCase& one) {
    const auto found = before.find(one.name());
    return found != before.end() && found->second.empty();
  });
  Player player(networks, disks);
  const std::size_t skipped =
      std::erase_if(cases, [&](const KillCase& one) { return !player.can_play(one); });
  if (cases.empty()) {
    std::printf("nothing to run, %zu skipped\n", skipped);
    return verdict_of(skipped, 0);
  }
  const SystemClock clock;
  const MonoTime begun = clock.now();
  std::vector<std::string> failed;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string name = cases[i].name();
    const Verdict verdict = player.play(cases[i]);
    const double spent = std::chrono::duration<double>(clock.now() - begun).count();
    const double left =
        spent / static_cast<double>(i + 1) * static_cast<double>(cases.size() - i - 1);
    std::printf("[%3zu/%zu] %-58s %-7s %5.1f s   %.0f s left\n", i + 1, cases.size(), name.c_str(),
                verdict.ok() ? "equal" : "FAILED", verdict.seconds, left);
    if (!verdict.ok()) {
      std::printf("    %s\n    again: build/dev/tests/kill_matrix --only %s\n    files: %s\n",
                  verdict.fault.c_str(), name.c_str(), verdict.files.c_str());
      failed.push_back(name);
    }
    std::fflush(stdout);
    if (!options.results.empty()) add_finding(options.results, name, verdict.fault);
  }
  std::printf("%zu cases: %zu equal, %zu failed", cases.size(), cases.size() - failed.size(),
              failed.size());
  if (skipped > 0) std::printf(", %zu skipped: this machine cannot, see above", skipped);
  std::printf("\n");
  for (const std::string& name : failed) std::printf("  failed: %s\n", name.c_str());
  return verdict_of(skipped, failed.size());
}

int write(const Options& options) {
  const Status written =
      write_page(options.page, table_of(all_cases(), read_findings(options.results)));
  if (written.ok()) return 0;
  std::fprintf(stderr, "%s\n", written.error().to_string().c_str());
  return 2;
}

// The cases run as the first process of a PID namespace, where the machine allows one: all that
// they started ends with it, and it ends with its parent.
int run_apart(const Options& options) {
  auto networks = NodeNetworks::open(kNodes);
  if (!networks.ok()) {
    std::printf("no cables to cut: %s\n", networks.error().to_string().c_str());
    std::fflush(stdout);
  }
  NodeNetworks* const raw = networks.ok() ? networks->get() : nullptr;
  const Status mounts = NodeDisks::enter_mount_namespace();
  const Status disks = mounts.ok() ? NodeDisks::check_fuse() : mounts;
  if (!disks.ok()) std::printf("no disks to break: %s\n", disks.error().to_string().c_str());
  std::fflush(stdout);
  if (!mounts.ok() || ::unshare(CLONE_NEWPID) != 0) return run(options, raw, disks.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Its own view of processes: survivors are told by their ids.
    if (::mount("proc", "/proc", "proc", 0, "") != 0) {
      std::printf("nothing to run: /proc cannot be mounted: %s\n", std::strerror(errno));
      std::fflush(stdout);
      ::_exit(verdict_of(1, 0));
    }
    const int status = run(options, raw, disks.ok());
    std::fflush(stdout);
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace rubato::fault

int main(int argc, char** argv) {
  rubato::fault::Options options;
  if (!rubato::fault::parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: kill_matrix [--telling] [--only TEXT]… [--slice I/N] [--list]\n"
                 "                   [--results FILE] [--page FILE]\n");
    return 2;
  }
  if (options.list) {
    for (const auto& one : rubato::fault::chosen(options)) std::printf("%s\n", one.name().c_str());
    return 0;
  }
  const int status = rubato::fault::run_apart(options);
  const int written = options.page.empty() ? 0 : rubato::fault::write(options);
  return status != 0 ? status : written;
}
