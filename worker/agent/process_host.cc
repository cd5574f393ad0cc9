#include "worker/agent/process_host.h"

#include "common/command.h"
#include "common/log.h"
#include "common/words.h"
#include "worker/agent/error_output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace rubato::worker {

namespace {

constexpr int kWorkerFd = 3;

struct Worker {
  pid_t pid = -1;  // and that of its process group
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  int fd = -1;
  Task reader;
  std::unique_ptr<ErrorOutput> errors;

  ~Worker() {
    hang_up();
    if (fd >= 0) ::close(fd);
  }
  // What it has sent is read. Whoever still holds its end of the pair hears and says no more.
  void hang_up() {
    if (fd >= 0) ::shutdown(fd, SHUT_RDWR);
    reader = Task();
  }
};

// False at the end of the stream.
bool read_fully(int fd, char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n > 0) {
      to += n;
      size -= static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Of a program that could not be started: whether it is for want of memory or processes, which may
// be there in a moment.
Code code_of(int error) {
  return error == EAGAIN || error == ENOMEM ? Code::kUnavailable : Code::kNotFound;
}

std::string framed(const std::string& body) {
  const auto size = static_cast<std::uint32_t>(body.size());
  std::string frame;
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>((size >> shift) & 0xff);
  return frame + body;
}

// Sets worker.pid; `link` is the worker's end of its socket pair. 0, or an errno.
int start_program(std::vector<std::string>& command, Worker& worker, int link) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    if (std::strncmp(*line, "RUBATO_AGENT_FD=", 16) != 0) lines.emplace_back(*line);
  }
  lines.push_back("RUBATO_AGENT_FD=" + std::to_string(kWorkerFd));
  lines.push_back("RUBATO_SLOT=" + std::to_string(worker.slot));
  lines.push_back("RUBATO_INCARNATION=" + std::to_string(worker.incarnation));
  const std::vector<char*> environment = exec_words(lines);
  const std::vector<char*> arguments = exec_words(command);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // In this order: the first may be number kWorkerFd itself. dup2 onto itself keeps the descriptor
  // across exec.
  posix_spawn_file_actions_adddup2(&actions, worker.errors->write_end(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, link, kWorkerFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGTERM);
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGPIPE);
  sigaddset(&defaults, SIGCHLD);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);  // a new one
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawnp(&worker.pid, arguments[0], &actions, &attributes,
                                   arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

struct ProcessHost::Impl {
  Executor& executor;
  std::vector<std::string> command;
  std::mutex mutex;
  std::unique_ptr<Condition> changed;
  std::deque<HostEvent> events;
  std::map<std::uint32_t, std::shared_ptr<Worker>> workers;  // present one of each slot
  Task reaper;

  Impl(Executor& e, std::vector<std::string> c)
      : executor(e), command(std::move(c)), changed(e.make_condition()) {
    CHECK(!command.empty());
  }

  void push(HostEvent event) {
    std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    changed->notify_all();
  }

  // Nothing where it has ended: its id may be another's.
  void kill(const Worker& worker) {
    std::lock_guard lock(mutex);
    const auto found = workers.find(worker.slot);
    if (found != workers.end() && found->second.get() == &worker) ::kill(-worker.pid, SIGKILL);
  }

  void read_frames(const Worker& worker) {
    std::array<unsigned char, 4> head{};
    while (read_fully(worker.fd, reinterpret_cast<char*>(head.data()), head.size())) {
      const std::size_t size = (static_cast<std::size_t>(head[0]) << 24) |
                               (static_cast<std::size_t>(head[1]) << 16) |
                               (static_cast<std::size_t>(head[2]) << 8) | head[3];
      if (size > kFrameMax) {
        LOG_ERROR("agent", "worker {} sent a frame of {}; it is killed", worker.slot,
                  counted(size, "byte"));
        kill(worker);
        return;
      }
      HostEvent event;
      event.slot = worker.slot;
      event.incarnation = worker.incarnation;
      event.message.resize(size);
      if (!read_fully(worker.fd, event.message.data(), size)) return;
      push(std::move(event));
    }
  }

  // Waits for any child: ours, and as PID 1 also orphans.
  void reap(std::stop_token stop) {
    while (!stop.stop_requested()) {
      // It is not waited for yet: nobody else may get its id before its group is killed.
      siginfo_t end{};
      if (::waitid(P_ALL, 0, &end, WEXITED | WNOWAIT) == 0) {
        take_end(end);
        continue;
      }
      if (errno == EINTR) continue;
      // No child at the moment.
      std::unique_lock lock(mutex);
      changed->wait_until(lock, executor.now() + 1s,
                          [&] { return stop.stop_requested() || !workers.empty(); });
    }
  }

  void take_end(const siginfo_t& end) {
    std::shared_ptr<Worker> gone;
    {
      std::lock_guard lock(mutex);
      const auto found = std::ranges::find_if(
          workers, [&](const auto& each) { return each.second->pid == end.si_pid; });
      if (found != workers.end()) {
        gone = found->second;
        workers.erase(found);
      }
    }
    if (gone) ::kill(-end.si_pid, SIGKILL);  // what it has left behind
    ::waitpid(end.si_pid, nullptr, 0);
    if (!gone) return;
    gone->hang_up();
    const bool is_by_itself = end.si_code == CLD_EXITED;
    HostEvent event;
    event.kind = HostEvent::Kind::kExited;
    event.slot = gone->slot;
    event.incarnation = gone->incarnation;
    event.exit_code = is_by_itself ? end.si_status : -1;
    event.signal = is_by_itself ? 0 : end.si_status;
    event.last_words = gone->errors->finish();
    push(std::move(event));
  }

  // The reaper may wait for an orphan that lives on: a child that ends at once wakes it.
  void end_reaper() {
    while (!reaper.done()) {
      const pid_t waker = ::fork();
      if (waker == 0) ::_exit(0);
      if (waker < 0) {  // too many processes; those that were just killed make room
        executor.sleep_for(10ms);
        continue;
      }
      reaper.join();
      ::waitpid(waker, nullptr, 0);  // where the reaper has not
    }
  }
};

ProcessHost::ProcessHost(Executor& executor, std::vector<std::string> command)
    : impl_(std::make_unique<Impl>(executor, std::move(command))) {
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, the kernel reaps what is to be asked for here
}

ProcessHost::~ProcessHost() {
  impl_->reaper.request_stop();
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [slot, worker] : impl_->workers) ::kill(-worker->pid, SIGKILL);
    impl_->changed->notify_all();
  }
  impl_->end_reaper();
}

Status ProcessHost::spawn(std::uint32_t slot, std::uint64_t incarnation) {
  // Its threads first: a program that runs already cannot do without them.
  if (impl_->reaper.done()) {
    TRY(impl_->reaper,
        impl_->executor.try_spawn("reaper", [this](std::stop_token stop) { impl_->reap(stop); }));
  }
  const std::string name = "worker-" + std::to_string(slot);
  auto worker = std::make_shared<Worker>();
  worker->slot = slot;
  worker->incarnation = incarnation;
  TRY(worker->errors, ErrorOutput::open(impl_->executor, name + "-errors"));
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return Error(Code::kUnavailable, std::string("socketpair: ") + std::strerror(errno));
  }
  worker->fd = pair[0];
  auto reader = impl_->executor.try_spawn(
      name,
      [impl = impl_.get(), worker = worker.get()](std::stop_token) { impl->read_frames(*worker); });
  if (!reader.ok()) {
    ::close(pair[1]);
    return reader.error();
  }
  worker->reader = std::move(reader).value();
  int error = 0;
  {
    std::lock_guard lock(impl_->mutex);  // the reaper must know all of it before it can reap it
    error = start_program(impl_->command, *worker, pair[1]);
    if (error == 0) impl_->workers[slot] = worker;
    impl_->changed->notify_all();
  }
  ::close(pair[1]);
  worker->errors->forget_write_end();
  if (error != 0) {
    return Error(code_of(error),
                 "starting " + impl_->command.front() + ": " + std::strerror(error));
  }
  return ok();
}

Status ProcessHost::send(std::uint32_t slot, const std::string& command) {
  std::shared_ptr<Worker> worker;
  {
    std::lock_guard lock(impl_->mutex);
    const auto found = impl_->workers.find(slot);
    if (found == impl_->workers.end()) return Error(Code::kNotFound, "no worker lives in the slot");
    worker = found->second;
  }
  const std::string frame = framed(command);
  std::size_t sent = 0;
  const MonoTime deadline = impl_->executor.now() + std::chrono::milliseconds(kSendLimitMs);
  while (sent < frame.size()) {
    const ssize_t n =
        ::send(worker->fd, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN)
      return Error(Code::kUnavailable, std::string("the worker is gone: ") + std::strerror(errno));
    if (impl_->executor.now() >= deadline) {
      impl_->kill(*worker);
      return Error(Code::kTimeout, "the worker does not read; it was killed");
    }
    pollfd waiting{worker->fd, POLLOUT, 0};
    ::poll(&waiting, 1, 100);
  }
  return ok();
}

void ProcessHost::kill(std::uint32_t slot) {
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->workers.find(slot);
  if (found != impl_->workers.end()) ::kill(-found->second->pid, SIGKILL);
}

Result<HostEvent> ProcessHost::next(MonoTime deadline) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->changed->wait_until(lock, deadline, [&] { return !impl_->events.empty(); })) {
    return Error(Code::kTimeout, "nothing happened");
  }
  HostEvent event = std::move(impl_->events.front());
  impl_->events.pop_front();
  return event;
}

}  // namespace rubato::worker
