#include "tools/rubatoctl/local/process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::ctl {
namespace {

constexpr auto kExitPoll = 20ms;
constexpr unsigned kFirstFdToClose = 3;

volatile std::sig_atomic_t was_interrupted = 0;
void note_signal(int) { was_interrupted = 1; }

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

std::string stat_of(int pid) { return first_line(fmt::format("/proc/{}/stat", pid)); }

// In the child, between fork and exec: only calls that are safe there. It goes on when `go` gives a
// byte, and ends when that is closed without.
[[noreturn]] void become(char* const* arguments, int log, const int (&go)[2], int report,
                         pid_t parent, bool tied) {
  ::close(go[1]);
  ::setsid();
  if (tied) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);  // it ended before we could ask
  }
  char word = 0;
  ssize_t came = 0;
  while ((came = ::read(go[0], &word, 1)) < 0 && errno == EINTR) {
  }
  if (came != 1) ::_exit(1);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGHUP}) ::signal(number, SIG_DFL);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(log, 1);
  ::dup2(log, 2);
  const int kept = ::fcntl(report, F_DUPFD_CLOEXEC, 100);
  for (int fd = static_cast<int>(kFirstFdToClose); fd < 1024; ++fd)
    if (fd != kept) ::close(fd);
  ::execv(arguments[0], arguments);
  const int error = errno;
  const ssize_t ignored = ::write(kept, &error, sizeof error);
  (void)ignored;
  ::_exit(127);
}

Status write_pid_file(const std::string& path, const ProcessId& id) {
  const std::string fresh = path + ".new";
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << to_text(id) << "\n";
    if (!out.flush()) return Error(Code::kUnavailable, "cannot write " + fresh);
  }
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return Error(Code::kUnavailable, "cannot write " + path + ": " + std::strerror(errno));
  return ok();
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool is_interrupted() { return was_interrupted != 0; }

std::optional<std::uint64_t> start_ticks_of(const std::string& stat_line) {
  const auto name_end = stat_line.rfind(')');  // the name may hold anything, blanks too
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat_line.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number)
    if (!(fields >> field)) return std::nullopt;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string to_text(const ProcessId& id) {
  return fmt::format("{} {} {}", id.pid, id.start_ticks, id.boot);
}

std::optional<ProcessId> parse_process_id(const std::string& text) {
  ProcessId id;
  std::istringstream in(text);
  if (!(in >> id.pid >> id.start_ticks >> id.boot) || id.pid <= 1) return std::nullopt;
  return id;
}

std::optional<ProcessId> read_pid_file(const std::string& path) {
  return parse_process_id(first_line(path));
}

Result<ProcessId> start_process(const ProcessSpec& spec) {
  std::vector<char*> arguments;
  for (const std::string& argument : spec.arguments)
    arguments.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: execv's signature
  arguments.push_back(nullptr);
  const int log = ::open(spec.log.c_str(), O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
  if (log < 0)
    return Error(Code::kUnavailable, "cannot write " + spec.log + ": " + std::strerror(errno));
  int report[2];
  int go[2];
  if (::pipe2(report, O_CLOEXEC) != 0) {
    ::close(log);
    return Error(Code::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  }
  if (::pipe2(go, O_CLOEXEC) != 0) {
    for (const int fd : {log, report[0], report[1]}) ::close(fd);
    return Error(Code::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid == 0) become(arguments.data(), log, go, report[1], parent, spec.ends_with_us);
  for (const int fd : {log, report[1], go[0]}) ::close(fd);
  const ProcessId id{pid, start_ticks_of(stat_of(pid)).value_or(0), boot_id()};
  Status known = pid < 0
                     ? Error(Code::kUnavailable, std::string("fork: ") + std::strerror(fork_error))
                     : write_pid_file(spec.pid_file, id);
  if (known.ok() && ::write(go[1], "g", 1) != 1)
    known = Error(Code::kUnavailable, spec.arguments[0] + " ended before it was executed");
  ::close(go[1]);
  int error = 0;
  const ssize_t told = known.ok() ? ::read(report[0], &error, sizeof error) : 0;
  ::close(report[0]);
  if (known.ok() && told > 0)
    known = Error(Code::kInvalid, "cannot run " + spec.arguments[0] + ": " + std::strerror(error));
  if (known.ok()) return id;
  if (pid > 0) {  // it ends by itself, and nobody is to look for it
    ::waitpid(pid, nullptr, 0);
    ::unlink(spec.pid_file.c_str());
  }
  return known.error();
}

bool is_running(const ProcessId& id) {
  if (id.pid <= 1) return false;
  ::waitpid(id.pid, nullptr, WNOHANG);  // reaps it if it is our child and has ended
  const std::string stat = stat_of(id.pid);
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return false;
  const char state = stat[name_end + 2];
  if (state == 'Z' || state == 'X') return false;
  return start_ticks_of(stat) == id.start_ticks && boot_id() == id.boot;
}

bool send_signal(const ProcessId& id, int signal, bool whole_group) {
  if (!is_running(id)) return false;
  return ::kill(whole_group ? -id.pid : id.pid, signal) == 0;
}

bool wait_for_exit(Executor& executor, const ProcessId& id, MonoTime deadline) {
  while (is_running(id)) {
    if (executor.now() >= deadline) return false;
    executor.sleep_for(kExitPoll);
  }
  return true;
}

Status run_program(Executor& executor, const std::vector<std::string>& arguments,
                   const std::string& output, const std::function<bool()>& should_stop) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: posix_spawnp's signature
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (!output.empty())
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_CREAT | O_TRUNC | O_WRONLY,
                                     0600);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Error(Code::kInvalid, "cannot run " + arguments[0] + ": " + std::strerror(error));
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (should_stop && should_stop()) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return Error(Code::kCancelled, "interrupted");
    }
    executor.sleep_for(kExitPoll);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok();
  return Error(
      Code::kInvalid,
      fmt::format("{} ended with {} {}", arguments[0], WIFEXITED(status) ? "status" : "signal",
                  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status)));
}

std::string tail_of(const std::string& path, std::size_t lines) {
  std::ifstream in(path);
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back("  " + line + "\n");
    if (last.size() > lines) last.pop_front();
  }
  std::string text;
  for (const std::string& line : last) text += line;
  return text;
}

}  // namespace rubato::ctl
