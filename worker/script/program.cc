#include "worker/script/program.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace rubato::worker {
namespace {

constexpr const char* kOwnDescriptor = "RUBATO_AGENT_FD";

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

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

// In the child, before exec: only calls that are safe after fork.
[[noreturn]] void become(char* const* arguments, char* const* variables, pid_t parent, int tell) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before it could be bound to us
  for (const int number : {SIGTERM, SIGINT, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (const int null = ::open("/dev/null", O_RDONLY); null >= 0) ::dup2(null, STDIN_FILENO);
  ::execvpe(arguments[0], arguments, variables);
  const int error = errno;
  [[maybe_unused]] const auto told = ::write(tell, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

std::string to_text(const ProgramEnd& end) {
  if (end.signal == 0) return fmt::format("exited with status {}", end.exit_code);
  return fmt::format("was ended by signal {} ({}){}", end.signal, ::strsignal(end.signal),
                     end.signal == SIGKILL ? "; out of memory, perhaps" : "");
}

PosixProgram::~PosixProgram() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status PosixProgram::start(const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& variables) {
  CHECK(pid_ < 0 && !command.empty());
  std::vector<std::string> words = command;
  std::vector<std::string> lines = merged(variables);
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> environment = pointers(lines);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error(Code::kUnavailable, fmt::format("pipe: {}", std::strerror(errno)));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments.data(), environment.data(), parent, ends[1]);
  ::close(ends[1]);
  int error = pid < 0 ? errno : 0;
  if (pid >= 0) {
    while (::read(ends[0], &error, sizeof error) < 0 && errno == EINTR) {
    }
  }
  ::close(ends[0]);
  if (error == 0) {
    ::setpgid(pid, pid);  // whoever of us comes first
    pid_ = pid;
    return ok();
  }
  if (pid >= 0) ::waitpid(pid, nullptr, 0);
  return Error(Code::kNotFound, fmt::format("starting {}: {}", command[0], std::strerror(error)));
}

void PosixProgram::signal(int number) {
  if (pid_ >= 0) ::kill(-pid_, number);
}

std::optional<ProgramEnd> PosixProgram::take_end() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ::kill(-pid_, SIGKILL);  // what it has left behind
  pid_ = -1;
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
