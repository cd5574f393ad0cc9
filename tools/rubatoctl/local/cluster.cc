#include "tools/rubatoctl/local/cluster.h"

#include "common/files.h"
#include "common/json.h"
#include "tools/rubatoctl/session.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

namespace rubato::ctl {

namespace fs = std::filesystem;

namespace {

constexpr auto kKillLimit = 5s;
constexpr const char* kLock = "lock";
constexpr const char* kRecord = "cluster.json";
constexpr const char* kNewRecord = "cluster.json.tmp";  // of replace_file()
constexpr const char* kFolders[] = {"logs", "pids", "nodes", "claims"};
constexpr const char* kOtherState =
    "\n  What to do: look at its rights and its disk, or choose another --state";

std::string operator_name(int index) { return fmt::format("operator-{}", index); }
std::string node_process(const std::string& name) { return "node-" + name; }

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    return Error(Code::kUnavailable, "cannot make " + path + ": " + error.message() + kOtherState);
  return ok();
}

// An `up` that ended before it wrote the record leaves no more than the lock.
Status check_unused(const std::string& state) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(state, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kLock || name == kNewRecord) continue;
    return Error(Code::kInvalid, fmt::format("{} is not a local cluster and holds other files, "
                                             "such as {}\n  What to do: name an empty or a new "
                                             "folder with --state",
                                             state, name));
  }
  return ok();
}

}  // namespace

LocalCluster::LocalCluster(Executor& executor, LocalSettings settings)
    : executor_(executor), settings_(std::move(settings)) {}

LocalCluster::~LocalCluster() {
  if (lock_ >= 0) ::close(lock_);
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::open(Executor& executor, LocalSettings settings,
                                                         bool create) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(executor, std::move(settings)));
  const std::string& state = cluster->settings_.state;
  std::error_code error;
  const bool is_new = !fs::exists(state + "/" + kRecord, error);
  if (error)
    return Error(Code::kUnavailable,
                 "cannot look into " + state + ": " + error.message() + kOtherState);
  if (is_new && !create)
    return Error(Code::kNotFound, "there is no local cluster in " + state +
                                      "\n  What to do: `rubatoctl local up` starts one; --state "
                                      "DIR names another folder");
  if (is_new) TRY_OK(check_unused(state));
  TRY_OK(make_folder(state));
  std::error_code ignored;
  fs::permissions(state, fs::perms::owner_all, ignored);
  cluster->lock_ = ::open((state + "/" + kLock).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (cluster->lock_ < 0 || ::flock(cluster->lock_, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    if (why == EWOULDBLOCK)
      return Error(Code::kUnavailable,
                   "another rubatoctl is at work on " + state +
                       "\n  What to do: wait for it, or choose another --state");
    return Error(Code::kUnavailable, fmt::format("cannot lock {}/{}: {}{}", state, kLock,
                                                 std::strerror(why), kOtherState));
  }
  TRY_OK(cluster->load());
  for (const char* folder : kFolders) TRY_OK(make_folder(state + "/" + folder));
  return cluster;
}

Status LocalCluster::load() {
  const std::string path = settings_.state + "/" + kRecord;
  if (!fs::exists(path)) {
    TRY_OK(take_free_network());
    return save();
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const auto value = json::parse(text.str());
  if (!value.ok()) return value.error().in(path);
  auto record = decode_local_record(*value);
  if (!record.ok()) return record.error().in(path);
  record_ = std::move(record).value();
  return ok();
}

Status LocalCluster::save() const {
  PosixFileSystem files;
  return replace_file(files, settings_.state + "/" + kRecord,
                      json::dump(encode(record_), 2) + "\n");
}

std::string LocalCluster::kubeconfig() const { return local_kubeconfig(settings_.state); }
std::string LocalCluster::claim_folder(const std::string& ns, const std::string& name) const {
  return settings_.state + "/claims/" + ns + "/" + name;
}
std::string LocalCluster::log_of(const std::string& process) const {
  return settings_.state + "/logs/" + process + ".log";
}
std::string LocalCluster::pid_file(const std::string& process) const {
  return settings_.state + "/pids/" + process + ".pid";
}
bool LocalCluster::runs(const std::string& process) const {
  const auto id = read_pid_file(pid_file(process));
  return id && is_running(*id);
}
void LocalCluster::say(const std::string& text) const {
  if (settings_.say) settings_.say(text);
}

Status LocalCluster::start(const std::string& process, std::vector<std::string> arguments) {
  arguments[0] = settings_.programs + "/" + arguments[0];
  const auto started = start_process(
      {std::move(arguments), log_of(process), pid_file(process), settings_.ends_with_us});
  if (!started.ok())
    return Error(started.error().code(),
                 started.error().what() + "\n  What to do: build it (`make release`)");
  return ok();
}

// ---- Up
// ------------------------------------------------------------------------------------------

Status LocalCluster::up(int nodes, int slots, const std::vector<int>& gpus) {
  const WallTime since = executor_.clock().wall();
  TRY_OK(add_nodes(record_, nodes, slots, gpus));
  TRY_OK(choose_network());
  TRY_OK(save());  // before anything runs: `down` must know of it
  if (!runs("apiserver")) TRY_OK(start_apiserver());
  TRY_OK(wait_for_api());
  TRY_OK(prepare_api());
  TRY_OK(start_operators());
  std::vector<std::string> started;
  for (const LocalNode& node : record_.nodes) {
    if (runs(node_process(node.name))) continue;
    TRY_OK(start_node(node));
    started.push_back(node.name);
  }
  TRY_OK(wait_for_leader(since));
  return wait_for_nodes(started, since);
}

Status LocalCluster::take_free_network() {
  TRY(claim_, NetworkClaim::free());
  record_.network = claim_->network();
  return ok();
}

// Nodes keep their addresses, unless none of them runs and somebody else has one of these or is
// about to.
Status LocalCluster::choose_network() {
  std::vector<int> numbers;
  for (const LocalNode& node : record_.nodes) {
    if (runs(node_process(node.name))) return ok();
    numbers.push_back(node.number);
  }
  if (!claim_) claim_ = NetworkClaim::of(record_.network);
  if (claim_ && can_serve(record_.network, numbers)) return ok();
  return take_free_network();
}

Status LocalCluster::start_apiserver() {
  return start("apiserver", {"rubato-apiserver", "--state", settings_.state + "/apiserver",
                             "--crds", settings_.crds});
}

// Slots of one machine share its cores, so more of them need not be faster: jobs take what is free.
// Agents are told both addresses once, when their pod is made: the ports must stay. They are chosen
// anew only when nothing of us runs and somebody else has taken one.
Status LocalCluster::start_operators() {
  bool any_runs = false;
  for (int i = 0; i < kOperators; ++i) any_runs = any_runs || runs(operator_name(i));
  bool is_usable = record_.operator_ports.size() == kOperators;
  for (const int port : record_.operator_ports)
    is_usable = is_usable && (any_runs || can_listen("127.0.0.1", port));
  if (!is_usable) {
    record_.operator_ports.clear();
    for (int i = 0; i < kOperators; ++i) {
      TRY(const int port, free_port());
      record_.operator_ports.push_back(port);
    }
    TRY_OK(save());
  }
  std::string addresses;
  for (const int port : record_.operator_ports)
    addresses += fmt::format("{}127.0.0.1:{}", addresses.empty() ? "" : ",", port);
  for (int i = 0; i < kOperators; ++i) {
    if (runs(operator_name(i))) continue;
    const int port = record_.operator_ports[static_cast<std::size_t>(i)];
    TRY_OK(start(operator_name(i), {"rubato-operator", "--kubeconfig", kubeconfig(), "--namespace",
                                    kOperatorNamespace, "--identity", operator_name(i), "--listen",
                                    fmt::format("127.0.0.1:{}", port), "--coordinators", addresses,
                                    "--gpu-resource", kSlotResource, "--min-gain", "-1",
                                    "--lease-seconds", std::to_string(kLeaseSeconds)}));
  }
  return ok();
}

Status LocalCluster::start_node(const LocalNode& node) {
  std::vector<std::string> arguments = {"rubato-localnode",
                                        "--kubeconfig",
                                        kubeconfig(),
                                        "--name",
                                        node.name,
                                        "--address",
                                        node_address(record_.network, node.number),
                                        "--resource",
                                        kSlotResource,
                                        "--root",
                                        settings_.state + "/nodes/" + node.name,
                                        "--claims",
                                        settings_.state + "/claims",
                                        "--client-ca",
                                        settings_.state + "/apiserver/ca.crt",
                                        "--path",
                                        settings_.programs + ":/usr/local/bin:/usr/bin:/bin"};
  const localnode::GpuPaths& paths = settings_.gpu_paths;
  const std::vector<std::string> offered =
      node.gpus.empty()
          ? std::vector<std::string>{"--slots", std::to_string(node.slots)}
          : std::vector<std::string>{"--gpus",        fmt::format("{}", fmt::join(node.gpus, ",")),
                                     "--gpu-devices", paths.devices,
                                     "--gpu-driver",  paths.driver};
  arguments.insert(arguments.end(), offered.begin(), offered.end());
  return start(node_process(node.name), std::move(arguments));
}

Result<std::string> LocalCluster::add_node(const std::string& name, std::optional<int> slots,
                                           const std::vector<int>& gpus) {
  TRY_OK(check_node_name(name));
  const bool is_known =
      std::ranges::find(record_.nodes, name, &LocalNode::name) != record_.nodes.end();
  if (!is_known && static_cast<int>(record_.nodes.size()) >= kNodesMax)
    return Error(Code::kExhausted, fmt::format("{} nodes are the most", kNodesMax));
  const std::size_t had = record_.nodes.size();
  TRY(const LocalNode node,
      gpus.empty() ? add_slot_node(record_, name, slots) : add_gpu_node(record_, name, gpus));
  if (runs(node_process(node.name)))
    return Error(Code::kAlreadyExists, "node " + node.name + " runs already");
  if (!runs("apiserver"))
    return Error(Code::kUnavailable,
                 "the cluster does not run\n  What to do: `rubatoctl local up`");
  TRY_OK(save());  // before it runs: `down` must know of it
  const Status up = bring_up(node);
  if (up.ok()) return node.name;
  if (record_.nodes.size() > had) TRY_OK(forget_node(node.name));
  return up.error();
}

Status LocalCluster::bring_up(const LocalNode& node) {
  const WallTime since = executor_.clock().wall();
  TRY_OK(start_node(node));
  return wait_for_nodes({node.name}, since);
}

Status LocalCluster::forget_node(const std::string& name) {
  const std::string file = pid_file(node_process(name));
  if (const auto id = read_pid_file(file); id && send_signal(*id, SIGKILL, true))
    wait_for_exit(executor_, *id, executor_.now() + kKillLimit);
  std::error_code ignored;
  fs::remove(file, ignored);
  std::erase_if(record_.nodes, [&](const LocalNode& node) { return node.name == name; });
  return save();
}

Status LocalCluster::kill_node(const std::string& name) {
  TRY_OK(check_node_name(name));
  const auto id = read_pid_file(pid_file(node_process(name)));
  if (!id || !send_signal(*id, SIGKILL, true)) {
    std::string running;
    for (const LocalNode& node : record_.nodes)
      if (runs(node_process(node.name))) running += (running.empty() ? "" : ", ") + node.name;
    return Error(Code::kNotFound, "no node " + name + " runs here; these do: " +
                                      (running.empty() ? "none" : running));
  }
  wait_for_exit(executor_, *id, executor_.now() + kKillLimit);
  return ok();
}

// ---- Down
// ----------------------------------------------------------------------------------------

Status LocalCluster::down(Duration grace) {
  // Nodes first: their pods end while there is an API server to tell. Then who decides, then who
  // remembers.
  std::vector<std::vector<std::string>> stages(3);
  for (const LocalNode& node : record_.nodes) stages[0].push_back(node_process(node.name));
  for (int i = 0; i < kOperators; ++i) stages[1].push_back(operator_name(i));
  stages[2].emplace_back("apiserver");
  for (const auto& stage : stages) {
    std::vector<std::pair<std::string, ProcessId>> stopping;
    for (const std::string& process : stage) {
      const auto id = read_pid_file(pid_file(process));
      if (id && send_signal(*id, SIGTERM, false)) stopping.emplace_back(process, *id);
    }
    const MonoTime deadline = executor_.now() + grace;
    for (const auto& [process, id] : stopping) {
      if (!wait_for_exit(executor_, id, deadline)) {
        say(process + " still ran after its time: killed");
        send_signal(id, SIGKILL, true);
        if (!wait_for_exit(executor_, id, executor_.now() + kKillLimit))
          return Error(Code::kTimeout,
                       fmt::format("process {} ({}) does not end", id.pid, process));
      }
      std::error_code ignored;
      fs::remove(pid_file(process), ignored);
    }
  }
  return ok();
}

Status LocalCluster::purge() {
  for (const ProcessState& process : processes())
    if (process.running) return Error(Code::kConflict, process.name + " still runs");
  std::vector<const char*> names(std::begin(kFolders), std::end(kFolders));
  // The record is among the last: a purge that was interrupted can be repeated.
  for (const char* name : {"apiserver", kNewRecord, kRecord, kLock}) names.push_back(name);
  std::error_code error;
  for (const char* name : names) {
    const std::string path = settings_.state + "/" + name;
    fs::remove_all(path, error);
    if (error) return Error(Code::kUnavailable, "cannot remove " + path + ": " + error.message());
  }
  fs::remove(settings_.state, error);
  if (error) say(settings_.state + " stays: " + error.message());
  return ok();
}

std::vector<ProcessState> LocalCluster::processes() const {
  std::vector<std::string> names{"apiserver"};
  for (int i = 0; i < kOperators; ++i) names.push_back(operator_name(i));
  for (const LocalNode& node : record_.nodes) names.push_back(node_process(node.name));
  std::vector<ProcessState> states;
  for (const std::string& name : names) {
    ProcessState state{name, read_pid_file(pid_file(name)).value_or(ProcessId{}), false,
                       log_of(name)};
    state.running = is_running(state.id);
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace rubato::ctl
