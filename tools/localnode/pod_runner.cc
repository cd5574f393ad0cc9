#include "tools/localnode/pod_runner.h"

#include "common/log.h"
#include "kube/quantity.h"
#include "tools/localnode/pod_folders.h"
#include "tools/localnode/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::localnode {

namespace {

using json::Value;
constexpr auto kVolumeRetry = 500ms;
constexpr auto kVolumeRefresh = 10s;  // Secrets that were renewed meanwhile
constexpr auto kKillWait = 5s;        // after SIGKILL; the kernel is not asked for longer
constexpr Duration kWriteRetry = 200ms;
constexpr Duration kWriteRetryMost = 5s;

Value condition(const char* type, bool value, WallTime now) {
  return Value::object({{"type", type},
                        {"status", value ? "True" : "False"},
                        {"lastTransitionTime", to_rfc3339(now)}});
}

}  // namespace

PodRunner::PodRunner(Executor& executor, kube::Client& client, const RunnerSettings& settings,
                     Volumes& volumes, json::Value pod, std::string pod_ip)
    : executor_(executor),
      client_(client),
      settings_(settings),
      volumes_(volumes),
      pod_(std::move(pod)),
      pod_ip_(std::move(pod_ip)),
      folder_(settings.root + "/pods/" + kube::uid_of(pod_)),
      changed_(executor.make_condition()) {
  pod_.at("status").set("podIP", pod_ip_);
  pod_.at("status").set("hostIP", settings_.host_ip);
}

PodRunner::~PodRunner() {
  abandon();
  task_ = Task();
}

void PodRunner::start() {
  task_ = executor_.spawn("pod-" + kube::name_of(pod_), [this](std::stop_token stop) {
    run(stop);
    done_ = true;
  });
}

void PodRunner::terminate(Duration grace) {
  std::lock_guard lock(mutex_);
  const MonoTime at = executor_.now() + grace;
  if (!kill_at_ || at < *kill_at_) kill_at_ = at;
  changed_->notify_all();
}

void PodRunner::abandon() {
  {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_->notify_all();
  }
  signal_all(SIGKILL);
}

bool PodRunner::is_done() const { return done_; }

std::shared_ptr<ContainerLog> PodRunner::log(const std::string& container) const {
  std::lock_guard lock(mutex_);
  for (const auto& c : containers_) {
    if (c->name == container) return c->log;
  }
  return nullptr;
}

void PodRunner::run(std::stop_token stop) {
  began_ = executor_.clock().wall();
  const Status prepared = prepare(stop);
  if (!prepared.ok()) {
    fail("CreateContainerConfigError", prepared.error().what());
  } else if (run_init_containers(stop)) {
    for (const auto& spec : pod_["spec"]["containers"].items()) {
      auto container = std::make_unique<Container>();
      container->name = spec["name"].string_or("");
      container->spec = spec;
      const Status launched = launch(*container);
      std::lock_guard lock(mutex_);
      containers_.push_back(std::move(container));
      if (!launched.ok()) {
        containers_.back()->exited = true;
        containers_.back()->exit_code = 127;
        containers_.back()->start_error = launched.error().what();
        containers_.back()->began = containers_.back()->ended = executor_.clock().wall();
        LOG_WARNING("localnode", "{}: {}", kube::name_of(pod_), launched.error().to_string());
      }
    }
    write_status("Running");
    const Task refreshed = executor_.spawn("volumes-" + kube::name_of(pod_), [this](auto ended) {
      while (executor_.sleep_for(kVolumeRefresh, ended)) (void)volumes_.prepare(pod_, folder_);
    });
    wait_for_end(stop);
  }
  gpus_ = GpuLease();  // whoever is told of the end counts them as free
  bool remove = false;
  bool silent = false;
  {
    std::lock_guard lock(mutex_);
    remove = kill_at_.has_value();
    silent = abandoned_;
  }
  if (!silent && !containers_.empty()) {
    const bool good = std::all_of(containers_.begin(), containers_.end(),
                                  [](const auto& c) { return c->exit_code == 0; });
    write_status(good ? "Succeeded" : "Failed");
  }
  clear_pod_folder(folder_);
  // A pod that ended by itself is removed when somebody deletes it (terminate()).
  while (!remove && !silent && !stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    changed_->wait_until(lock, executor_.now() + 1s, [&] { return kill_at_ || abandoned_; });
    remove = kill_at_.has_value();
    silent = abandoned_;
  }
  if (remove && !silent) remove_object();
}

Status PodRunner::prepare(std::stop_token stop) {
  std::error_code error;
  std::filesystem::create_directories(folder_ + "/root", error);
  while (true) {
    const Status tried = try_prepare();
    if (tried.ok() || tried.error().code() == Code::kInvalid) return tried;
    // A Secret or claim may come yet, or the API server be back: the pod waits as long as it
    // exists.
    write_status("Pending", "ContainerCreating", tried.error().what());
    std::unique_lock lock(mutex_);
    changed_->wait_until(lock, executor_.now() + kVolumeRetry,
                         [&] { return kill_at_ || abandoned_; });
    if (kill_at_ || abandoned_ || stop.stop_requested()) {
      return Error(Code::kCancelled, "the pod was deleted before it started");
    }
  }
}

Status PodRunner::try_prepare() {
  TRY(volume_folders_, volumes_.prepare(pod_, folder_));
  for (const char* kind : {"initContainers", "containers"})
    for (const auto& container : pod_["spec"][kind].items()) {
      auto& environment = environments_[container["name"].string_or("")];
      TRY(environment, environment_of(client_, pod_, container));
    }
  std::size_t count = 0;
  for (const auto& container : pod_["spec"]["containers"].items()) count += gpus_of(container);
  for (const auto& container : pod_["spec"]["initContainers"].items())
    count = std::max(count, gpus_of(container));
  TRY(gpus_, settings_.gpus.take(count));
  return ok();
}

std::size_t PodRunner::gpus_of(const json::Value& container) const {
  if (settings_.gpus.is_empty()) return 0;
  const auto amount = kube::parse_quantity(
      container["resources"]["limits"][settings_.resource].string_view_or("0"));
  return amount.ok() && *amount > 0 ? static_cast<std::size_t>(*amount) : 0;
}

// Every container on a node with GPUs sees its own and no other; an image for GPUs would say on
// what its worker computes, and here the node does.
void PodRunner::add_gpus(const Container& container,
                         std::map<std::string, std::string>& environment) {
  if (settings_.gpus.is_empty()) return;
  const std::size_t count = gpus_of(container.spec);
  CHECK(gpus_given_ + count <= gpus_.gpus().size());
  const auto first = gpus_.gpus().begin() + static_cast<std::ptrdiff_t>(gpus_given_);
  environment["CUDA_VISIBLE_DEVICES"] =
      visible_devices({first, first + static_cast<std::ptrdiff_t>(count)});
  environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (count == 0) return;
  gpus_given_ += count;
  environment.emplace("RUBATO_DEVICE", "cuda");
  if (!settings_.library_path.empty())
    environment.emplace("LD_LIBRARY_PATH", settings_.library_path);
}

bool PodRunner::run_init_containers(std::stop_token stop) {
  for (const auto& spec : pod_["spec"]["initContainers"].items()) {
    auto container = std::make_unique<Container>();
    container->name = spec["name"].string_or("");
    container->spec = spec;
    const Status launched = launch(*container);
    Container* running = container.get();
    {
      std::lock_guard lock(mutex_);
      containers_.push_back(std::move(container));
    }
    if (!launched.ok()) {
      fail("Init:Error", launched.error().what());
      return false;
    }
    wait_for_end(stop);
    gpus_given_ = 0;
    if (running->exit_code != 0 || kill_at_ || abandoned_) {
      fail("Init:Error",
           fmt::format("init container \"{}\" ended with {}", running->name, running->exit_code));
      return false;
    }
  }
  std::lock_guard lock(mutex_);
  containers_.clear();
  return true;
}

Status PodRunner::launch(Container& container) {
  SandboxSpec spec;
  spec.environment = environments_[container.name];
  for (const char* part : {"command", "args"})
    for (const auto& word : container.spec[part].items())
      spec.command.push_back(expand(word.string_or(""), spec.environment));
  if (spec.command.empty()) {
    return Error(Code::kInvalid, "container \"" + container.name +
                                     "\" has no command; images are not pulled here, so name one");
  }
  spec.environment.emplace("HOSTNAME", kube::name_of(pod_));
  spec.environment.emplace("HOME", "/tmp");
  add_gpus(container, spec.environment);
  spec.path = settings_.path;
  spec.hostname = kube::name_of(pod_);
  spec.new_root = folder_ + "/root";
  spec.working_folder = container.spec["workingDir"].string_or("/");
  // A pod has a /tmp of its own, which would hide programs that were built below this machine's.
  const std::string programs = settings_.path.substr(0, settings_.path.find(':'));
  const bool are_mounted = programs.starts_with("/tmp/");
  for (const auto& mount : container.spec["volumeMounts"].items()) {
    const auto folder = volume_folders_.find(mount["name"].string_or(""));
    if (folder == volume_folders_.end()) {
      return Error(Code::kInvalid,
                   "volumeMount of an unknown volume \"" + mount["name"].string_or("") + "\"");
    }
    TRY(const std::string source, sub_path_of(folder->second, mount["subPath"].string_or("")));
    const std::string target = mount["mountPath"].string_or("");
    if (!are_mounted && (programs + "/").starts_with(target.ends_with('/') ? target : target + "/"))
      return Error(
          Code::kInvalid,
          fmt::format("the volume at {} would hide the programs of Rubato, which are in {} "
                      "on this node; mount it elsewhere",
                      target, programs));
    spec.mounts.push_back({source, target, mount["readOnly"].bool_or(false)});
  }
  if (are_mounted) spec.mounts.push_back({programs, programs, true});
  TRY(const SandboxProcess started,
      start_sandbox(spec, folder_ + "/" + container.name + ".json", gpus_.descriptors()));
  container.pid = started.pid;
  container.pipe = started.output;
  container.started = true;
  container.began = executor_.clock().wall();
  container.log =
      std::make_shared<ContainerLog>(executor_, folder_ + "/" + container.name + ".log");
  container.pump = executor_.spawn("log-" + container.name,
                                   [this, &container](std::stop_token) { pump_output(container); });
  return ok();
}

// Ends when every process of the sandbox has closed its output; then the sandbox itself has ended.
void PodRunner::pump_output(Container& container) {
  std::array<char, 16384> buffer{};
  while (true) {
    const ssize_t n = ::read(container.pipe, buffer.data(), buffer.size());
    if (n > 0) {
      container.log->append(std::string_view(buffer.data(), static_cast<std::size_t>(n)));
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  ::close(container.pipe);
  int status = 0;
  while (::waitpid(container.pid, &status, 0) < 0 && errno == EINTR) {
  }
  std::lock_guard lock(mutex_);
  container.log->finish();
  container.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  container.ended = executor_.clock().wall();
  container.pid = -1;
  container.exited = true;
  changed_->notify_all();
}

bool PodRunner::all_exited() const {
  return std::all_of(containers_.begin(), containers_.end(),
                     [](const auto& c) { return c->exited; });
}

void PodRunner::wait_for_end(std::stop_token) {
  std::unique_lock lock(mutex_);
  const auto far = [&] { return executor_.now() + std::chrono::hours(1); };
  while (!all_exited() && !kill_at_ && !abandoned_) changed_->wait_until(lock, far());
  if (all_exited()) return;
  lock.unlock();
  signal_all(abandoned_ ? SIGKILL : SIGTERM);
  lock.lock();
  while (!all_exited() && !abandoned_ && executor_.now() < *kill_at_) {
    changed_->wait_until(lock, *kill_at_);  // a later, shorter grace wakes us too
  }
  if (all_exited()) return;
  lock.unlock();
  signal_all(SIGKILL);
  lock.lock();
  const MonoTime limit = executor_.now() + kKillWait;
  changed_->wait_until(lock, limit, [&] { return all_exited(); });
}

void PodRunner::signal_all(int signal) {
  std::lock_guard lock(mutex_);
  for (const auto& container : containers_) {
    if (container->pid > 0) ::kill(container->pid, signal);
  }
}

void PodRunner::fail(const std::string& reason, const std::string& message) {
  LOG_WARNING("localnode", "{}: {}: {}", kube::name_of(pod_), reason, message);
  bool wanted = false;
  {
    std::lock_guard lock(mutex_);
    wanted = !kill_at_ && !abandoned_;
  }
  if (wanted) write_status("Failed", reason, message);
  std::lock_guard lock(mutex_);
  containers_.clear();
}

json::Value PodRunner::container_status(const Container& container) const {
  Value state = Value::object();
  if (container.exited) {
    Value ended = Value::object({{"exitCode", container.exit_code},
                                 {"reason", container.exit_code == 0 ? "Completed" : "Error"},
                                 {"startedAt", to_rfc3339(container.began)},
                                 {"finishedAt", to_rfc3339(container.ended)}});
    if (container.exit_code > 128) ended.set("signal", container.exit_code - 128);
    if (!container.start_error.empty()) {
      ended.set("reason", "StartError");
      ended.set("message", container.start_error);
    }
    state.set("terminated", std::move(ended));
  } else {
    state.set("running", Value::object({{"startedAt", to_rfc3339(container.began)}}));
  }
  return Value::object({{"name", container.name},
                        {"image", container.spec["image"].string_or("")},
                        {"imageID", ""},
                        {"ready", !container.exited},
                        {"started", container.started},
                        {"restartCount", 0},
                        {"state", std::move(state)}});
}

void PodRunner::write_status(const char* phase, const std::string& reason,
                             const std::string& message) {
  const WallTime now = executor_.clock().wall();
  const bool running = std::string_view(phase) == "Running";
  Value statuses = Value::array();
  for (const auto& container : containers_) statuses.push_back(container_status(*container));
  Value status =
      Value::object({{"phase", phase},
                     {"podIP", pod_ip_},
                     {"podIPs", Value::array({Value::object({{"ip", pod_ip_}})})},
                     {"hostIP", settings_.host_ip},
                     {"startTime", to_rfc3339(began_)},
                     {"conditions", Value::array({condition("PodScheduled", true, began_),
                                                  condition("Initialized", running, now),
                                                  condition("ContainersReady", running, now),
                                                  condition("Ready", running, now)})},
                     {"containerStatuses", std::move(statuses)},
                     {"reason", reason.empty() ? Value() : Value(reason)},
                     {"message", message.empty() ? Value() : Value(message)}});
  const Value patch = Value::object(
      {{"metadata", Value::object({{"uid", kube::uid_of(pod_)}})}, {"status", std::move(status)}});
  const auto write = [&]() -> Status {
    const auto written =
        client_.patch(kube::types::kPod, kube::key_of(pod_), kube::PatchType::kMerge, patch,
                      {.subresource = "status", .field_manager = "rubato-localnode"});
    return written.ok() ? ok() : Status(written.error());
  };
  const bool is_end = !running && std::string_view(phase) != "Pending";
  insist("status", write, [&] { return !is_end && (kill_at_ || all_exited()); });
}

void PodRunner::remove_object() {
  const auto remove = [&] {
    const Status removed = client_.remove(kube::types::kPod, kube::key_of(pod_),
                                          {.uid = kube::uid_of(pod_), .grace_period_seconds = 0});
    const bool is_another = !removed.ok() && removed.error().code() == Code::kConflict;
    return is_another ? ok() : removed;  // of the same name
  };
  insist("removal", remove, [] { return false; });
}

// An API server that is away comes back; one that starts may refuse for a moment what it grants.
// `is_moot`, under mutex_: something else is to be written now.
void PodRunner::insist(const char* what, const std::function<Status()>& write,
                       const std::function<bool()>& is_moot) {
  for (Duration pause = kWriteRetry;; pause = std::min(2 * pause, kWriteRetryMost)) {
    const Status done = write();
    if (done.ok() || done.error().code() == Code::kNotFound) return;
    const bool is_refused = done.error().code() == Code::kInvalid;
    if (is_refused || pause == kWriteRetry)
      LOG_WARNING("localnode", "{}: {} is not written{}: {}", kube::name_of(pod_), what,
                  is_refused ? "" : " yet", done.error().to_string());
    if (is_refused) return;
    std::unique_lock lock(mutex_);
    if (changed_->wait_until(lock, executor_.now() + pause,
                             [&] { return abandoned_ || is_moot(); }))
      return;
  }
}

}  // namespace rubato::localnode
