#include "tools/localnode/sandbox.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::localnode {

namespace fs = std::filesystem;

namespace {

Error failed(const std::string& what) {
  return Error(Code::kUnavailable, what + ": " + std::strerror(errno));
}

Status write_file(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return failed("opening " + path);
  const ssize_t n = ::write(fd, text.data(), text.size());
  const int saved = errno;
  ::close(fd);
  errno = saved;
  if (n != static_cast<ssize_t>(text.size())) return failed("writing " + path);
  return ok();
}

// We become uid 0 of a namespace in which nobody else exists; outside we stay who we are.
Status enter_namespaces() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS) != 0) {
    return failed("making user, mount and PID namespaces");
  }
  TRY_OK(write_file("/proc/self/setgroups", "deny"));
  TRY_OK(write_file("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1"));
  return write_file("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1");
}

void make_empty_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  if (fd >= 0) ::close(fd);
}

Status bind(const std::string& source, const std::string& target, bool read_only) {
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("binding " + source);
  }
  if (!read_only) return ok();
  // Flags that the original mount carries are locked in a user namespace: keep them.
  for (const unsigned long extra :
       {0ul, static_cast<unsigned long>(MS_NOSUID | MS_NODEV),
        static_cast<unsigned long>(MS_NOSUID | MS_NODEV | MS_NOEXEC),
        static_cast<unsigned long>(MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME)}) {
    if (::mount(nullptr, target.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | extra,
                nullptr) == 0) {
      return ok();
    }
  }
  return ok();  // what the machine itself would not let us write stays as it is
}

// Builds the container's file system below `root`: this machine's, read-only, with room made for
// the mount targets, which may lie in folders that do not exist here.
class View {
 public:
  View(std::string root, const std::vector<Mount>& mounts) : root_(std::move(root)) {
    for (const Mount& mount : mounts) {
      fs::path path = fs::path("/");
      // Targets below symbolic links (/var/run) mean what the link points to.
      std::error_code ignored;
      path = fs::weakly_canonical(mount.target, ignored);
      targets_.emplace_back(mount, path.lexically_normal().string());
    }
  }

  Status build() {
    if (::mount("view", root_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m") != 0) {
      return failed("mounting the root of the view");
    }
    TRY_OK(mirror("/"));
    for (const auto& [mount, target] : targets_) {
      const std::string inside = root_ + target;
      std::error_code error;
      if (fs::is_directory(mount.source, error)) {
        fs::create_directories(inside, error);
      } else {
        fs::create_directories(fs::path(inside).parent_path(), error);
        make_empty_file(inside);
      }
      TRY_OK(bind(mount.source, inside, mount.read_only));
    }
    return ok();
  }

 private:
  bool leads_to_target(const std::string& folder) const {
    const std::string prefix = folder == "/" ? "/" : folder + "/";
    for (const auto& [mount, target] : targets_) {
      if (target.starts_with(prefix)) return true;
    }
    return false;
  }
  bool is_target(const std::string& folder) const {
    for (const auto& [mount, target] : targets_) {
      if (target == folder) return true;
    }
    return false;
  }

  // Copies the shape of a folder: children are bound, except those on the way to a target.
  Status mirror(const std::string& folder) {
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(folder, fs::directory_options::skip_permission_denied, error)) {
      const std::string path = entry.path().string();
      const std::string inside = root_ + path;
      if (is_target(path)) continue;  // build() makes it, as a file or a folder
      if (path == "/proc" || path == "/tmp" || path == root_) {
        ::mkdir(inside.c_str(), path == "/tmp" ? 01777 : 0755);
        continue;
      }
      if (entry.is_symlink(error)) {
        const std::string to = fs::read_symlink(entry.path(), error).string();
        if (::symlink(to.c_str(), inside.c_str()) != 0) return failed("linking " + inside);
      } else if (entry.is_directory(error)) {
        ::mkdir(inside.c_str(), 0755);
        if (leads_to_target(path)) {
          TRY_OK(mirror(path));
        } else {
          TRY_OK(bind(path, inside, path != "/dev"));
        }
      } else if (entry.is_regular_file(error)) {
        make_empty_file(inside);
        (void)bind(path, inside, true);
      }
    }
    return ok();
  }

  std::string root_;
  std::vector<std::pair<Mount, std::string>> targets_;
};

Status change_root(const std::string& root) {
  if (::chdir(root.c_str()) != 0) return failed("entering the view");
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return failed("changing the root");
  if (::umount2(".", MNT_DETACH) != 0) return failed("leaving the old root");
  return ok();
}

Status become_pid_one(const SandboxSpec& spec) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return failed("making mounts private");
  }
  TRY_OK(View(spec.new_root, spec.mounts).build());
  // While the machine's own /proc can still be seen: the kernel refuses a new one otherwise.
  const std::string proc = spec.new_root + "/proc";
  if (::mount("proc", proc.c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    return failed("mounting /proc");
  }
  TRY_OK(change_root(spec.new_root));
  if (!spec.hostname.empty() && ::sethostname(spec.hostname.data(), spec.hostname.size()) != 0) {
    return failed("setting the host name " + spec.hostname);
  }
  if (::chdir(spec.working_folder.c_str()) != 0) return failed("entering " + spec.working_folder);
  return ok();
}

// localnode waits for its signals with sigwait, so it has blocked them, and a mask is inherited.
void unblock_signals() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void exec(const SandboxSpec& spec) {
  std::vector<char*> arguments;
  std::vector<std::string> words = spec.command;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> lines;
  lines.reserve(spec.environment.size() + 1);
  for (const auto& [name, value] : spec.environment) lines.push_back(name + "=" + value);
  lines.push_back("PATH=" + spec.path);
  std::vector<char*> environment;
  environment.reserve(lines.size() + 1);
  for (std::string& line : lines) environment.push_back(line.data());
  environment.push_back(nullptr);
  ::setenv("PATH", spec.path.c_str(), 1);
  unblock_signals();
  ::execvpe(arguments[0], arguments.data(), environment.data());
  std::fprintf(stderr, "cannot start \"%s\": %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

volatile pid_t forward_to = 0;
void forward(int signal) {
  if (forward_to > 0) ::kill(forward_to, signal);
}

// Waits for PID 1, forwarding SIGTERM and SIGINT to it; gives the exit status to end with.
int supervise(pid_t child) {
  forward_to = child;
  struct sigaction action{};
  action.sa_handler = forward;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  unblock_signals();  // what came meanwhile is forwarded now
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 127;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

json::Value to_json(const SandboxSpec& spec) {
  json::Value value = json::Value::object();
  for (const std::string& word : spec.command) value.at("command").push_back(word);
  value.set("path", spec.path);
  value.set("environment", json::Value::object());
  for (const auto& [name, text] : spec.environment) value.at("environment").set(name, text);
  value.set("mounts", json::Value::array());
  for (const Mount& mount : spec.mounts) {
    value.at("mounts").push_back(json::Value::object(
        {{"source", mount.source}, {"target", mount.target}, {"readOnly", mount.read_only}}));
  }
  value.set("workingFolder", spec.working_folder);
  value.set("hostname", spec.hostname);
  value.set("newRoot", spec.new_root);
  return value;
}

Result<SandboxSpec> sandbox_spec(const json::Value& value) {
  SandboxSpec spec;
  for (const auto& word : value["command"].items()) spec.command.push_back(word.string_or(""));
  if (spec.command.empty()) return Error(Code::kInvalid, "a sandbox needs a command");
  spec.path = value["path"].string_or("");
  for (const auto& [name, text] : value["environment"].members()) {
    spec.environment[name] = text.string_or("");
  }
  for (const auto& mount : value["mounts"].items()) {
    spec.mounts.push_back({mount["source"].string_or(""), mount["target"].string_or(""),
                           mount["readOnly"].bool_or(false)});
  }
  spec.working_folder = value["workingFolder"].string_or("/");
  spec.hostname = value["hostname"].string_or("");
  spec.new_root = value["newRoot"].string_or("");
  return spec;
}

Result<SandboxProcess> start_sandbox(const SandboxSpec& spec, const std::string& path,
                                     const std::vector<int>& inherited) {
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  const std::string text = json::dump(to_json(spec));
  if (file < 0) return failed("opening " + path);
  const ssize_t written = ::write(file, text.data(), text.size());
  ::close(file);
  if (written != static_cast<ssize_t>(text.size())) return failed("writing " + path);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return failed("making a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 2);
  for (const int descriptor : inherited)  // onto itself: then exec does not close it
    posix_spawn_file_actions_adddup2(&actions, descriptor, descriptor);
  std::string name = "rubato-localnode";
  std::string flag = "--sandbox";
  std::string argument = path;
  std::array<char*, 4> arguments{name.data(), flag.data(), argument.data(), nullptr};
  std::array<char*, 1> environment{nullptr};
  SandboxProcess started{.output = pipe[0]};
  const int error = ::posix_spawn(&started.pid, "/proc/self/exe", &actions, nullptr,
                                  arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  if (error == 0) return started;
  ::close(pipe[0]);
  return Error(Code::kUnavailable, std::string("starting a sandbox: ") + std::strerror(error));
}

int run_sandbox(const SandboxSpec& spec) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Status entered = enter_namespaces();
  if (!entered.ok()) {
    std::fprintf(stderr, "%s\n", entered.error().what().c_str());
    return 127;
  }
  const pid_t child = ::fork();
  if (child < 0) {
    std::fprintf(stderr, "fork: %s\n", std::strerror(errno));
    return 127;
  }
  if (child > 0) return supervise(child);
  const Status ready = become_pid_one(spec);
  if (!ready.ok()) {
    std::fprintf(stderr, "%s\n", ready.error().what().c_str());
    ::_exit(127);
  }
  exec(spec);
}

Status probe_namespaces() {
  const pid_t child = ::fork();
  if (child < 0) return failed("fork");
  if (child == 0) ::_exit(enter_namespaces().ok() ? 0 : 1);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok();
  return Error(Code::kUnavailable,
               "this machine does not let us make user namespaces; as root: sysctl -w "
               "kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000");
}

}  // namespace rubato::localnode
