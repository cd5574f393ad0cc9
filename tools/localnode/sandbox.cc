#include "tools/localnode/sandbox.h"

#include "tools/localnode/sub_path.h"

#include <algorithm>
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
#include <fmt/core.h>
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

Status bind_mount(const std::string& source, const std::string& target, bool read_only) {
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) {
    return failed("binding " + source);
  }
  if (!read_only) return ok();
  // With all that is mounted below it.
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY;
  if (::mount_setattr(-1, target.c_str(), AT_RECURSIVE, &attributes, sizeof attributes) == 0)
    return ok();
  // Before Linux 5.12. Flags that the original mount carries are locked in a user namespace: keep
  // them.
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

bool is_within(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder == "/" ? folder : folder + "/");
}

// An empty folder, or file, to mount `source` on.
Status make_mount_point(const std::string& source, const std::string& target) {
  std::error_code error;
  const bool is_folder = fs::is_directory(source, error);
  fs::create_directories(is_folder ? fs::path(target) : fs::path(target).parent_path(), error);
  if (!error && !is_folder && !fs::exists(target, error)) make_empty_file(target);
  if (!error) return ok();
  return Error(Code::kUnavailable,
               "making room for the volume at " + target + ": " + error.message());
}

// The container's file system below `root`: this machine's, read-only, with room made for the mount
// targets, which may lie in folders that do not exist here, and with a /dev of its own.
//
// Volumes come in two steps. build() mounts them in a folder of the view; place_volumes() moves
// them to their targets when this machine's root is gone, so that whatever link lies on the way (in
// a volume, too) leads to a place in the view and to nothing of the machine.
class View {
 public:
  explicit View(std::string root) : root_(std::move(root)) {}

  Status build(const std::vector<Mount>& mounts) {
    for (const Mount& mount : mounts) {
      TRY(const std::string target, mount_target(mount.target));
      targets_.emplace_back(target, mount);
    }
    std::ranges::stable_sort(targets_, {}, &Target::first);  // an outer one does not hide an inner
    if (::mount("view", root_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m") != 0) {
      return failed("mounting the root of the view");
    }
    TRY_OK(mirror("/"));
    TRY_OK(make_devices());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      Mount mount = targets_[i].second;
      OpenPath part;  // until it is mounted
      if (!mount.sub_path.empty()) {
        TRY(part, open_sub_path(mount.source, mount.sub_path));
        mount.source = part.path();
      }
      TRY_OK(make_mount_point(mount.source, root_ + waiting(i)));
      TRY_OK(bind_mount(mount.source, root_ + waiting(i), mount.read_only));
    }
    return ok();
  }

  // Within the view.
  Status place_volumes() const {
    std::error_code error;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const std::string& target = targets_[i].first;
      TRY_OK(make_mount_point(waiting(i), target));
      if (::mount(waiting(i).c_str(), target.c_str(), nullptr, MS_MOVE, nullptr) != 0)
        return failed("mounting a volume at " + target);
    }
    fs::remove_all(kWaiting, error);
    return ok();
  }

 private:
  using Target = std::pair<std::string, Mount>;
  static constexpr const char* kWaiting = "/.volumes";

  static std::string waiting(std::size_t i) { return fmt::format("{}/{}", kWaiting, i); }
  bool leads_to_target(const std::string& folder) const {
    return std::ranges::any_of(targets_, [&](const Target& target) {
      return target.first != folder && is_within(target.first, folder);
    });
  }
  bool is_target(const std::string& path) const {
    return std::ranges::find(targets_, path, &Target::first) != targets_.end();
  }

  // Copies the shape of a folder: children are bound, except those on the way to a target.
  Status mirror(const std::string& folder) {
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(folder, fs::directory_options::skip_permission_denied, error)) {
      const std::string path = entry.path().string();
      const std::string inside = root_ + path;
      if (is_target(path)) continue;  // place_volumes() makes it, as a file or a folder
      if (path == "/proc" || path == "/dev" || path == "/tmp" || path == root_) {
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
          TRY_OK(bind_mount(path, inside, true));
        }
      } else if (entry.is_regular_file(error)) {
        make_empty_file(inside);
        (void)bind_mount(path, inside, true);
      }
    }
    return ok();
  }

  // As a container runtime does: the devices that hold nothing, terminals of its own, shared memory
  // of its own, as much as the machine's. GPUs come as mounts.
  Status make_devices() const {
    const std::string devices = root_ + "/dev/";
    std::error_code error;
    for (const std::string name : {"null", "zero", "full", "random", "urandom", "tty"}) {
      if (!fs::is_character_file("/dev/" + name, error) || is_target("/dev/" + name)) continue;
      make_empty_file(devices + name);
      TRY_OK(bind_mount("/dev/" + name, devices + name, false));
    }
    const std::pair<const char*, const char*> links[] = {{"/proc/self/fd", "fd"},
                                                         {"/proc/self/fd/0", "stdin"},
                                                         {"/proc/self/fd/1", "stdout"},
                                                         {"/proc/self/fd/2", "stderr"},
                                                         {"pts/ptmx", "ptmx"}};
    for (const auto& [to, name] : links)
      if (::symlink(to, (devices + name).c_str()) != 0)
        return failed("linking /dev/" + std::string(name));
    ::mkdir((devices + "pts").c_str(), 0755);
    (void)::mount("devpts", (devices + "pts").c_str(), "devpts", MS_NOSUID | MS_NOEXEC,
                  "newinstance,ptmxmode=0666,mode=0620");
    ::mkdir((devices + "shm").c_str(), 01777);
    const fs::space_info room = fs::space("/dev/shm", error);
    const std::string options =
        "mode=1777" + (error ? std::string() : fmt::format(",size={}", room.capacity));
    if (::mount("shm", (devices + "shm").c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) !=
        0)
      return failed("mounting /dev/shm");
    return ok();
  }

  std::string root_;
  std::vector<Target> targets_;
};

Status change_root(const std::string& root) {
  if (::chdir(root.c_str()) != 0) return failed("entering the view");
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return failed("changing the root");
  if (::umount2(".", MNT_DETACH) != 0) return failed("leaving the old root");
  if (::chdir("/") != 0) return failed("entering the view");
  return ok();
}

Status become_pid_one(const SandboxSpec& spec) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return failed("making mounts private");
  }
  View view(spec.new_root);
  TRY_OK(view.build(spec.mounts));
  // While the machine's own /proc can still be seen: the kernel refuses a new one otherwise.
  const std::string proc = spec.new_root + "/proc";
  if (::mount("proc", proc.c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    return failed("mounting /proc");
  }
  TRY_OK(change_root(spec.new_root));
  TRY_OK(view.place_volumes());
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

Result<std::string> mount_target(const std::string& path) {
  if (!path.starts_with('/'))
    return Error(Code::kInvalid, "mountPath \"" + path + "\" is not an absolute path");
  std::error_code error;
  const std::string target = fs::weakly_canonical(path, error).lexically_normal().string();
  if (error) return Error(Code::kInvalid, "mountPath " + path + ": " + error.message());
  const std::string plain =
      target.size() > 1 && target.ends_with('/') ? target.substr(0, target.size() - 1) : target;
  if (plain != "/" && plain != "/dev" && !is_within(plain, "/proc")) return plain;
  return Error(Code::kInvalid, "mountPath " + path +
                                   ": a volume may not be mounted on /, on /dev or in /proc, which "
                                   "every container has of its own; mount it elsewhere");
}

json::Value to_json(const SandboxSpec& spec) {
  json::Value value = json::Value::object();
  for (const std::string& word : spec.command) value.at("command").push_back(word);
  value.set("path", spec.path);
  value.set("environment", json::Value::object());
  for (const auto& [name, text] : spec.environment) value.at("environment").set(name, text);
  value.set("mounts", json::Value::array());
  for (const Mount& mount : spec.mounts) {
    value.at("mounts").push_back(json::Value::object({{"source", mount.source},
                                                      {"target", mount.target},
                                                      {"readOnly", mount.read_only},
                                                      {"subPath", mount.sub_path}}));
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
                           mount["readOnly"].bool_or(false), mount["subPath"].string_or("")});
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
  // Some machines let everybody make them, and then allow nothing in them.
  if (child == 0)
    ::_exit(enter_namespaces().ok() &&
                    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0
                ? 0
                : 1);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok();
  return Error(Code::kUnavailable,
               "this machine does not let us make user namespaces and mount in them; as root: "
               "sysctl -w user.max_user_namespaces=10000; where it has these, also "
               "kernel.unprivileged_userns_clone=1 (Debian) and "
               "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); a container has to be "
               "started with --privileged");
}

}  // namespace rubato::localnode
