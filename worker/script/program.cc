#include "worker/script/program.h"

#include "common/command.h"
#include "common/json.h"
#include "common/log.h"
#include "worker/script/launch.h"
#include "worker/script/process_table.h"
#include "worker/script/spare_source.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace rubato::worker {
namespace {

constexpr const char* kOwnDescriptor = "RUBATO_AGENT_FD";
constexpr const char* kThreads = "OMP_NUM_THREADS";
constexpr const char* kSpareDescriptor = "RUBATO_SPARE_FD";
constexpr int kSpareFd = 3;
constexpr int kEndLooks = 5000;     // for a program that was killed to be gone: one a millisecond
constexpr int kSpareLooks = 1000;   // the same of a spare
constexpr int kSparesLostMost = 2;  // then there is no torch, or no memory for two

std::string value_of(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

std::vector<std::string> merged(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string text = *line;
    const std::string name = text.substr(0, text.find('='));
    if (name != kOwnDescriptor && !variables.contains(name)) lines.push_back(text);
  }
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

// In the child, before exec: only calls that are safe after fork.
[[noreturn]] void become(char* const* arguments, char* const* variables, pid_t parent, int tell,
                         int line, int output) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before it could be bound to us
  for (const int number : {SIGTERM, SIGINT, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC); null >= 0)
    ::dup2(null, STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    if (output >= 0) ::dup2(output, fd);
  if (line == kSpareFd) ::fcntl(line, F_SETFD, 0);
  if (line > kSpareFd) ::dup2(line, kSpareFd);
  ::execvpe(arguments[0], arguments, variables);
  const int error = errno;
  ::signal(SIGPIPE, SIG_IGN);  // nobody may listen any more
  [[maybe_unused]] const auto told = ::write(tell, &error, sizeof error);
  ::_exit(127);
}

// The errno that a child tells when it could not become the program; 0: it has, or it is still
// about to: reading a program from a mount that is gone never ends.
int error_of_start(int told) {
  pollfd waits{told, POLLIN, 0};
  int ready = 0;
  while ((ready = ::poll(&waits, 1, static_cast<int>(kExecMost / 1ms))) < 0 && errno == EINTR) {
  }
  int error = 0;
  if (ready > 0)
    while (::read(told, &error, sizeof error) < 0 && errno == EINTR) {
    }
  return error;
}

// In a process group of its own; `line` is its descriptor kSpareFd, -1: nothing; `output` its
// standard output and error, -1: ours.
Result<int> spawn(std::vector<std::string> words,
                  const std::map<std::string, std::string>& variables, int line, int output) {
  std::vector<std::string> lines = merged(variables);
  const std::vector<char*> arguments = exec_words(words);
  const std::vector<char*> environment = exec_words(lines);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error(Code::kUnavailable, fmt::format("pipe: {}", std::strerror(errno)));
  // Not where the line is to be.
  const int tell = ::fcntl(ends[1], F_DUPFD_CLOEXEC, kSpareFd + 1);
  ::close(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments.data(), environment.data(), parent, tell, line, output);
  ::close(tell);
  const int error = pid < 0 ? errno : error_of_start(ends[0]);
  ::close(ends[0]);
  if (error == 0) {
    ::setpgid(pid, pid);  // whoever of us comes first
    return pid;
  }
  if (pid >= 0) ::waitpid(pid, nullptr, 0);
  return Error(Code::kNotFound, fmt::format("starting {}: {}", words[0], std::strerror(error)));
}

}  // namespace

std::string to_text(const ProgramEnd& end) {
  if (end.signal == 0) return fmt::format("exited with status {}", end.exit_code);
  return fmt::format("was ended by signal {} ({}){}", end.signal, ::strsignal(end.signal),
                     end.signal == SIGKILL ? "; out of memory, perhaps" : "");
}

PosixProgram::PosixProgram(ProgressLog* log) : log_(log) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, the kernel reaps what is to be asked for here
}

PosixProgram::~PosixProgram() {
  end_spare();
  signal(SIGKILL);
  for (int i = 0; i < kEndLooks && pid_ >= 0 && !take_end(); ++i) ::usleep(1000);
}

Status PosixProgram::start(const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& variables) {
  CHECK(pid_ < 0 && !command.empty());
  is_told_ = false;
  if (log_ != nullptr) log_->begin();
  // One that made it not wait for its readers did so for itself alone.
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO, output()})
    if (const int flags = ::fcntl(fd, F_GETFL); flags >= 0)
      ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  if (hand_over(command, variables)) return ok();
  TRY(pid_, spawn(command, variables, -1, output()));
  return ok();
}

void PosixProgram::prepare(MonoTime now, const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& variables) {
  if (spare_.pid >= 0) {  // one that ended makes room for the next
    if (has_spare() || spare_.pid < 0 || now - spare_.since < kSpareReadyMost) return;
    end_spare();
    spares_lost_ = kSparesLostMost;
    LOG_WARNING("script",
                "a spare interpreter was not ready after {} s and was ended; programs start by "
                "themselves",
                std::chrono::seconds(kSpareReadyMost).count());
    return;
  }
  const auto python = python_of(command);
  if (!python || spares_lost_ >= kSparesLostMost) return;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  std::vector<std::string> words = python->interpreter;
  words.insert(words.end(), {"-c", kSpareSource});
  if (python->is_module) words.emplace_back("-m");
  words.insert(words.end(), python->arguments.begin(), python->arguments.end());
  std::map<std::string, std::string> some{{kSpareDescriptor, std::to_string(kSpareFd)}};
  const std::string threads = value_of(variables, kThreads);
  if (!threads.empty()) some.emplace(kThreads, threads);
  const auto pid = spawn(words, some, ends[1], output());
  ::close(ends[1]);
  if (!pid.ok()) {
    ::close(ends[0]);
    ++spares_lost_;
    return;
  }
  spare_ = {.pid = *pid, .line = ends[0], .since = now, .command = command, .threads = threads};
}

bool PosixProgram::has_spare() {
  if (spare_.pid < 0 || spare_.is_ready) return spare_.is_ready;
  std::array<char, 16> said{};
  const auto got = ::recv(spare_.line, said.data(), said.size(), MSG_DONTWAIT);
  if (got < 0) return false;
  spare_.is_ready = got > 0;
  if (spare_.is_ready) {
    LOG_INFO("script", "a spare is ready");
    return true;
  }
  end_spare();
  if (++spares_lost_ == kSparesLostMost)
    LOG_INFO("script", "no spare interpreter gets ready; programs start by themselves");
  return false;
}

// One in an uninterruptible sleep, on a mount that is gone, is reaped when it ends.
void PosixProgram::end_spare() {
  if (spare_.pid < 0) return;
  ::kill(-spare_.pid, SIGKILL);
  int reaped = 0;
  for (int i = 0; i < kSpareLooks && reaped == 0; ++i) {
    if (i > 0) ::usleep(1000);
    reaped = ::waitpid(spare_.pid, nullptr, WNOHANG);
  }
  if (reaped == 0) spares_ending_.insert(spare_.pid);
  ::close(spare_.line);
  spare_ = {};
}

// True when the spare runs the program from now on.
bool PosixProgram::hand_over(const std::vector<std::string>& command,
                             const std::map<std::string, std::string>& variables) {
  if (!has_spare()) return false;
  const bool fits = spare_.command == command && spare_.threads == value_of(variables, kThreads);
  json::Value more = json::Value::object();
  for (const auto& [name, value] : variables) more.set(name, value);
  const std::string told = json::dump(more) + "\n";
  const bool is_told = fits && ::send(spare_.line, told.data(), told.size(), MSG_NOSIGNAL) ==
                                   static_cast<ssize_t>(told.size());
  if (!is_told) {
    end_spare();
    return false;
  }
  ::close(spare_.line);
  pid_ = spare_.pid;
  spare_ = {};
  LOG_INFO("script", "a spare takes the program over");
  return true;
}

void PosixProgram::signal(int number) {
  if (pid_ < 0) return;
  if (number == SIGTERM) is_told_ = true;
  if (number == SIGKILL) is_told_ = false;
  ::kill(-pid_, number);
}

// Those of the program's orphans, which come to us, that have ended.
void PosixProgram::reap_orphans() {
  for (;;) {
    siginfo_t ended{};
    if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (ended.si_pid <= 0 || ended.si_pid == pid_) return;
    if (ended.si_pid != spare_.pid) {
      spares_ending_.erase(ended.si_pid);
      ::waitpid(ended.si_pid, nullptr, 0);
    } else if (spare_.is_ready) {
      end_spare();
      ++spares_lost_;
    } else {
      return;  // prepare() sees to it
    }
  }
}

// The first process has ended; whether others of the program still live. Those of its group have
// their time when they were told to end. All others are killed.
bool PosixProgram::leaves_some() {
  bool has_group = false;
  std::vector<pid_t> others;  // in sessions or groups of their own, and children of ours
  const pid_t self = ::getpid();
  for (const ProcessEntry& process : process_table()) {
    const bool is_ours = process.parent == self && process.group != spare_.pid &&
                         process.pid != spare_.pid && !spares_ending_.contains(process.group) &&
                         !spares_ending_.contains(process.pid);
    if (process.pid == pid_) continue;
    if (process.is_zombie) {
      if (is_ours) ::waitpid(process.pid, nullptr, WNOHANG);
    } else if (process.group == pid_) {
      has_group = true;
    } else if (is_ours) {
      others.push_back(process.pid);
    }
  }
  if (has_group && is_told_) return true;
  if (has_group) ::kill(-pid_, SIGKILL);
  bool has_others = false;  // that we may kill
  for (const pid_t other : others) has_others = ::kill(other, SIGKILL) == 0 || has_others;
  return has_group || has_others;
}

std::optional<ProgramEnd> PosixProgram::take_end() {
  if (pid_ < 0) return std::nullopt;
  reap_orphans();
  // The first process is kept: its number is the group's.
  siginfo_t ended{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      ended.si_pid != pid_ || leaves_some())
    return std::nullopt;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (log_ != nullptr) log_->end();
  return ProgramEnd{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                    .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

// ---- HeldPort

Result<HeldPort> HeldPort::any() {
  HeldPort port;
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  socklen_t size = sizeof at;
  port.fd_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (port.fd_ < 0) {  // without IPv6
    auto& old = reinterpret_cast<sockaddr_in&>(at);
    at = {};
    old.sin_family = AF_INET;
    size = sizeof old;
    port.fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (port.fd_ < 0 || ::bind(port.fd_, address, size) != 0 ||
      ::getsockname(port.fd_, address, &size) != 0)
    return Error(Code::kUnavailable, fmt::format("holding a port: {}", std::strerror(errno)));
  port.number_ = ntohs(at.sin6_port);  // at the same place in both
  return port;
}

HeldPort::HeldPort(HeldPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), number_(std::exchange(other.number_, 0)) {}

HeldPort& HeldPort::operator=(HeldPort&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = std::exchange(other.fd_, -1);
  number_ = std::exchange(other.number_, 0);
  return *this;
}

HeldPort::~HeldPort() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace rubato::worker
