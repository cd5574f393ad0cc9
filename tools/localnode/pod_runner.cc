#include "tools/localnode/pod_runner.h"

#include "common/log.h"
#include "kube/quantity.h"
#include "tools/localnode/pod_folders.h"
#include "tools/localnode/sub_path.h"

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
constexpr auto kVolumeRefresh = 10s;        // Secrets that were renewed meanwhile
constexpr auto kLook = 1h;                  // what is waited for wakes us
constexpr std::int64_t kGraceSeconds = 30;  // as a kubelet's

bool is_sidecar(const Value& init_container) {
  return init_container["restartPolicy"].string_view_or("") == "Always";
}

}  // namespace

std::size_t gpus_of_pod(const json::Value& pod,
                        const std::function<std::size_t(const json::Value&)>& gpus_of) {
  std::size_t sidecars = 0;
  std::size_t most = 0;
  for (const auto& container : pod["spec"]["initContainers"].items()) {
    const std::size_t count = sidecars + gpus_of(container);
    if (is_sidecar(container)) sidecars = count;
    most = std::max(most, count);
  }
  std::size_t beside = sidecars;
  for (const auto& container : pod["spec"]["containers"].items()) beside += gpus_of(container);
  return std::max(most, beside);
}

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
  std::lock_guard lock(mutex_);
  abandoned_ = true;
  for (const auto& container : containers_)
    if (container->pid > 0) ::kill(container->pid, SIGKILL);
  changed_->notify_all();
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
  const std::optional<Failure> failure = run_containers(stop);
  end_sidecars();
  gpus_ = GpuLease();  // whoever is told of the end counts them as free
  write_end(failure);
  clear_pod_folder(folder_);
  // A pod that ended by itself is removed when somebody deletes it (terminate()).
  bool silent = false;
  {
    std::unique_lock lock(mutex_);
    while (!is_to_end() && !stop.stop_requested()) changed_->wait_until(lock, executor_.now() + 1s);
    silent = abandoned_ || !kill_at_;
  }
  if (!silent) remove_object();
}

// What kept the containers from being started.
std::optional<PodRunner::Failure> PodRunner::run_containers(std::stop_token stop) {
  const Status prepared = prepare(stop);
  if (!prepared.ok()) return Failure{"CreateContainerConfigError", prepared.error().what()};
  const Status begun = run_init_containers();
  if (!begun.ok()) return Failure{"Init:Error", begun.error().what()};
  initialized_ = true;
  for (const auto& spec : pod_["spec"]["containers"].items()) start_container(spec, Kind::kMain);
  const Task refreshed = executor_.spawn("volumes-" + kube::name_of(pod_), [this](auto ended) {
    while (executor_.sleep_for(kVolumeRefresh, ended)) (void)volumes_.prepare(pod_, folder_);
  });
  wait_for_end(Kind::kMain);
  return std::nullopt;
}

// A pod that was deleted before its containers started goes without a word.
void PodRunner::write_end(const std::optional<Failure>& failure) {
  bool silent = false;
  bool good = true;
  {
    std::lock_guard lock(mutex_);
    silent = abandoned_ || (failure && kill_at_);
    for (const auto& container : containers_)
      if (container->kind == Kind::kMain) good = good && container->exit_code == 0;
  }
  if (failure)
    LOG_WARNING("localnode", "{}: {}: {}", kube::name_of(pod_), failure->reason, failure->message);
  if (silent) return;
  if (failure)
    write_status("Failed", failure->reason, failure->message);
  else
    write_status(good ? "Succeeded" : "Failed");
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
    changed_->wait_until(lock, executor_.now() + kVolumeRetry, [&] { return is_to_end(); });
    if (is_to_end() || stop.stop_requested()) {
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
  const auto count = gpus_of_pod(pod_, [&](const Value& container) { return gpus_of(container); });
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
void PodRunner::add_gpus(const Container& container, SandboxSpec& spec) {
  if (settings_.gpus.is_empty()) return;
  auto& environment = spec.environment;
  const std::size_t count = gpus_of(container.spec);
  CHECK(gpus_given_ + count <= gpus_.gpus().size());
  const auto first = gpus_.gpus().begin() + static_cast<std::ptrdiff_t>(gpus_given_);
  environment["CUDA_VISIBLE_DEVICES"] =
      visible_devices({first, first + static_cast<std::ptrdiff_t>(count)});
  environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  if (count == 0) return;
  gpus_given_ += count;
  for (const std::string& name : gpu_device_names(settings_.gpu_devices))
    spec.mounts.push_back({settings_.gpu_devices + "/" + name, "/dev/" + name, false});
  environment.emplace("RUBATO_DEVICE", "cuda");
  if (!settings_.library_path.empty())
    environment.emplace("LD_LIBRARY_PATH", settings_.library_path);
}

Status PodRunner::run_init_containers() {
  for (const auto& spec : pod_["spec"]["initContainers"].items()) {
    const Kind kind = is_sidecar(spec) ? Kind::kSidecar : Kind::kInit;
    const std::size_t given = gpus_given_;
    const Container& container = start_container(spec, kind);
    if (kind == Kind::kInit) {
      wait_for_end(kind);
      gpus_given_ = given;
    }
    std::lock_guard lock(mutex_);
    if (!container.start_error.empty()) return Error(Code::kInvalid, container.start_error);
    if (is_to_end()) return Error(Code::kCancelled, "the pod was deleted before it started");
    if (kind == Kind::kInit && container.exit_code != 0)
      return Error(Code::kInvalid, fmt::format("init container \"{}\" ended with {}",
                                               container.name, container.exit_code));
  }
  return ok();
}

PodRunner::Container& PodRunner::start_container(const json::Value& spec, Kind kind) {
  auto made = std::make_unique<Container>();
  Container& container = *made;
  container.kind = kind;
  container.name = spec["name"].string_or("");
  container.spec = spec;
  const Status launched = launch(container);
  std::lock_guard lock(mutex_);
  containers_.push_back(std::move(made));
  if (!launched.ok()) {
    container.exited = true;
    container.exit_code = 127;
    container.start_error = launched.error().what();
    container.began = container.ended = executor_.clock().wall();
    LOG_WARNING("localnode", "{}: {}", kube::name_of(pod_), launched.error().to_string());
  }
  return container;
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
  add_gpus(container, spec);
  spec.path = settings_.path;
  spec.hostname = kube::name_of(pod_);
  spec.new_root = folder_ + "/root";
  spec.working_folder = container.spec["workingDir"].string_or("");
  if (spec.working_folder.empty()) spec.working_folder = "/";
  TRY_OK(add_volumes(container, spec));
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

Status PodRunner::add_volumes(const Container& container, SandboxSpec& spec) const {
  // A pod has a /tmp of its own, which would hide programs that were built below this machine's.
  const std::string programs = settings_.path.substr(0, settings_.path.find(':'));
  const bool are_mounted = programs.starts_with("/tmp/");
  for (const auto& mount : container.spec["volumeMounts"].items()) {
    const std::string name = mount["name"].string_or("");
    const auto folder = volume_folders_.find(name);
    if (folder == volume_folders_.end())
      return Error(Code::kInvalid, "volumeMount of an unknown volume \"" + name + "\"");
    TRY(const std::string sub_path, sub_path_in(mount, environments_.at(container.name)));
    if (!sub_path.empty()) {  // what is wrong with it is said here; the sandbox opens it anew
      const auto opened = open_sub_path(folder->second, sub_path);
      if (!opened.ok()) return opened.error();
    }
    TRY(const std::string target, mount_target(mount["mountPath"].string_or("")));
    if (!are_mounted && (programs + "/").starts_with(target + "/"))
      return Error(
          Code::kInvalid,
          fmt::format("the volume at {} would hide the programs of Rubato, which are in {} "
                      "on this node; mount it elsewhere",
                      target, programs));
    spec.mounts.push_back({folder->second, target,
                           mount["readOnly"].bool_or(false) || is_written_here(pod_, name),
                           sub_path});
  }
  if (are_mounted) spec.mounts.push_back({programs, programs, true});
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

bool PodRunner::have_ended(Kind kind) const {
  return std::all_of(containers_.begin(), containers_.end(),
                     [&](const auto& c) { return c->kind != kind || c->exited; });
}

std::size_t PodRunner::exits() const {
  return static_cast<std::size_t>(std::count_if(containers_.begin(), containers_.end(),
                                                [](const auto& c) { return c->exited; }));
}

bool PodRunner::is_to_end() const { return kill_at_ || abandoned_; }

void PodRunner::wait_for_end(Kind kind) {
  std::vector<Container*> left;
  while (true) {
    std::size_t told = 0;
    bool tell = false;
    {
      std::lock_guard lock(mutex_);
      if (have_ended(kind)) return;
      told = exits();
      tell = !is_to_end();  // the grace of a pod that is to end goes by
    }
    if (tell) write_status(kind == Kind::kMain ? "Running" : "Pending");
    std::unique_lock lock(mutex_);
    while (exits() == told && !is_to_end()) changed_->wait_until(lock, executor_.now() + kLook);
    if (!is_to_end()) continue;
    for (const auto& container : containers_)
      if (container->kind == kind) left.push_back(container.get());
    break;
  }
  end(left, executor_.now());
}

// The last one first, each when the one before has ended, in one grace for all.
void PodRunner::end_sidecars() {
  std::vector<Container*> sidecars;
  bool tell = false;
  {
    std::lock_guard lock(mutex_);
    for (const auto& container : containers_)
      if (container->kind == Kind::kSidecar) sidecars.push_back(container.get());
    if (sidecars.empty()) return;
    tell = initialized_ && !is_to_end();
  }
  if (tell) write_status("Running");  // the containers have ended
  const auto grace = std::chrono::seconds(std::clamp<std::int64_t>(
      pod_["spec"]["terminationGracePeriodSeconds"].int_or(kGraceSeconds), 0, kGraceSecondsMost));
  const MonoTime latest = executor_.now() + grace;
  for (auto it = sidecars.rbegin(); it != sidecars.rend(); ++it) end({*it}, latest);
}

// SIGTERM, and SIGKILL when the grace is over, which is at `latest` if the pod is not deleted.
void PodRunner::end(const std::vector<Container*>& containers, MonoTime latest) {
  const auto are_gone = [&] {
    return std::all_of(containers.begin(), containers.end(), [](auto* c) { return c->exited; });
  };
  const auto send = [&](int signal) {
    for (const Container* container : containers)
      if (container->pid > 0) ::kill(container->pid, signal);
  };
  const auto kill_at = [&] { return kill_at_.value_or(latest); };
  std::unique_lock lock(mutex_);
  send(abandoned_ ? SIGKILL : SIGTERM);
  while (!are_gone() && !abandoned_ && executor_.now() < kill_at()) {
    changed_->wait_until(lock, kill_at());  // a later, shorter grace wakes us too
  }
  send(SIGKILL);
  // What waits for a disk (D state) outlives SIGKILL: until it is gone the pod has not ended, and
  // its GPUs and its folder are its own.
  while (!are_gone()) changed_->wait_until(lock, executor_.now() + kLook);
}

}  // namespace rubato::localnode
