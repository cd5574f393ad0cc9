#include "tools/localnode/node_agent.h"

#include "common/heaps.h"
#include "common/log.h"
#include "common/net/certificates.h"
#include "tools/localnode/pod_folders.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

namespace rubato::localnode {

namespace {
using json::Value;
constexpr auto kRegisterLimit = 60s;
constexpr auto kRegisterRetry = 500ms;
constexpr auto kRelook = 5s;  // runners that ended by themselves are looked at this often
}  // namespace

NodeAgent::NodeAgent(Executor& executor, kube::Client& client, Metrics& metrics,
                     NodeSettings settings)
    : executor_(executor),
      client_(client),
      settings_(std::move(settings)),
      runner_settings_{.node = settings_.name,
                       .host_ip = settings_.address,
                       .root = settings_.root,
                       .path = settings_.path,
                       .gpus = settings_.gpus,
                       .gpu_devices = settings_.gpu_devices,
                       .resource = settings_.resource,
                       .library_path = settings_.library_path},
      volumes_(client, settings_.claims),
      claim_binder_(executor, client, metrics, settings_.claims),
      pods_(client, executor, metrics,
            {.type = kube::types::kPod, .field_selector = "spec.nodeName=" + settings_.name}),
      boot_id_(net::random_hex(16)),
      changed_(executor.make_condition()) {
  pods_.on_change([this](const kube::Change<kube::Object>&) {
    std::lock_guard lock(mutex_);
    dirty_ = true;
    changed_->notify_all();
  });
}

NodeAgent::~NodeAgent() { stop(); }

Status NodeAgent::start() {
  clear_pod_folders(settings_.root);  // pods of a life before this one ended with it
  TRY_OK(register_node());
  lease_task_ = executor_.spawn("lease", [this](std::stop_token stop) { renew_lease(stop); });
  claim_binder_.start();
  pods_.start();
  pods_task_ = executor_.spawn("pods", [this](std::stop_token stop) { reconcile(stop); });
  return ok();
}

void NodeAgent::stop() {
  pods_task_.request_stop();
  {
    std::lock_guard lock(mutex_);
    changed_->notify_all();
  }
  pods_task_.join();
  pods_.stop();
  claim_binder_.stop();
  std::map<std::string, std::unique_ptr<PodRunner>> runners;
  {
    std::lock_guard lock(mutex_);
    runners.swap(runners_);
  }
  runners.clear();  // kills what still runs
  if (!lease_task_.done()) {
    lease_task_ = Task();
    (void)client_.patch(kube::types::kNode, {"", settings_.name}, kube::PatchType::kMerge,
                        Value::object({{"status", node_status(false)}}), {.subresource = "status"});
  }
}

Status NodeAgent::register_node() {
  const MonoTime deadline = executor_.now() + kRegisterLimit;
  while (true) {
    auto created = client_.create(kube::types::kNode, "", node_object(),
                                  {.field_manager = "rubato-localnode"});
    if (!created.ok() && created.error().code() == Code::kAlreadyExists) {
      // The same name again is a reboot: a new boot id, and every old pod is gone.
      created =
          client_.patch(kube::types::kNode, {"", settings_.name}, kube::PatchType::kMerge,
                        Value::object({{"metadata", node_object()["metadata"]},
                                       {"spec", Value::object({{"unschedulable", Value()}})}}));
    }
    if (created.ok()) break;
    if (retry_class(created.error().code()) == Retry::kNever || executor_.now() >= deadline)
      return created.error().in("registering node " + settings_.name);
    executor_.sleep_for(kRegisterRetry);
  }
  TRY_OK(write_lease());
  const auto status =
      client_.patch(kube::types::kNode, {"", settings_.name}, kube::PatchType::kMerge,
                    Value::object({{"status", node_status(true)}}), {.subresource = "status"});
  if (!status.ok()) return status.error().in("writing the node's status");
  LOG_INFO("localnode", "node {} is ready: {} x {} ({}) at {}", settings_.name, settings_.slots,
           settings_.resource, settings_.gpu_type, settings_.address);
  return ok();
}

json::Value NodeAgent::node_object() const {
  return Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Node"},
       {"metadata",
        Value::object({{"name", settings_.name},
                       {"labels", Value::object({{"kubernetes.io/hostname", settings_.name},
                                                 {"kubernetes.io/os", "linux"},
                                                 {"kubernetes.io/arch", "amd64"},
                                                 {"nvidia.com/gpu.product", settings_.gpu_type},
                                                 {"rubato.dev/localnode", "true"}})}})}});
}

json::Value NodeAgent::node_status(bool ready) const {
  const std::string now = to_rfc3339(executor_.clock().wall());
  Value amounts = Value::object({{"cpu", std::to_string(settings_.cpus)},
                                 {"memory", std::to_string(settings_.memory_bytes)},
                                 {"pods", std::to_string(kPodsMax)},
                                 {settings_.resource, std::to_string(settings_.slots)}});
  // Of the disk all, as of the memory: what is asked of it is counted, and not enforced.
  std::error_code error;
  const auto disk = std::filesystem::space(settings_.root, error);
  if (!error) amounts.set("ephemeral-storage", std::to_string(disk.capacity));
  return Value::object(
      {{"capacity", amounts},
       {"allocatable", amounts},
       {"addresses",
        Value::array({Value::object({{"type", "InternalIP"}, {"address", settings_.address}}),
                      Value::object({{"type", "Hostname"}, {"address", settings_.name}})})},
       {"daemonEndpoints",
        Value::object({{"kubeletEndpoint", Value::object({{"Port", settings_.kubelet_port}})}})},
       {"nodeInfo", Value::object({{"bootID", boot_id_},
                                   {"machineID", ""},
                                   {"systemUUID", ""},
                                   {"kernelVersion", ""},
                                   {"osImage", ""},
                                   {"containerRuntimeVersion", "process://"},
                                   {"kubeletVersion", "rubato-localnode"},
                                   {"kubeProxyVersion", ""},
                                   {"operatingSystem", "linux"},
                                   {"architecture", "amd64"}})},
       {"conditions",
        Value::array({Value::object({{"type", "Ready"},
                                     {"status", ready ? "True" : "False"},
                                     {"reason", ready ? "KubeletReady" : "NodeShutdown"},
                                     {"message", ready ? "runs pods as processes" : "was stopped"},
                                     {"lastHeartbeatTime", now},
                                     {"lastTransitionTime", now}})})}});
}

void NodeAgent::renew_lease(std::stop_token stop) {
  MonoTime next_status = executor_.now() + kNodeStatusPeriod;
  while (executor_.sleep_for(kLeaseRenew, stop)) {
    const Status written = write_lease();
    if (!written.ok()) LOG_WARNING("localnode", "lease: {}", written.error().to_string());
    if (executor_.now() < next_status) continue;
    next_status = executor_.now() + kNodeStatusPeriod;
    (void)client_.patch(kube::types::kNode, {"", settings_.name}, kube::PatchType::kMerge,
                        Value::object({{"status", node_status(true)}}), {.subresource = "status"});
  }
}

Status NodeAgent::write_lease() {
  const kube::Key key{"kube-node-lease", settings_.name};
  const Value spec = Value::object({{"holderIdentity", settings_.name},
                                    {"leaseDurationSeconds", kLeaseSeconds},
                                    {"renewTime", to_rfc3339_micro(executor_.clock().wall())}});
  auto written = client_.patch(kube::types::kLease, key, kube::PatchType::kMerge,
                               Value::object({{"spec", spec}}));
  if (written.ok() || written.error().code() != Code::kNotFound) {
    return written.ok() ? ok() : Status(written.error());
  }
  const Value lease =
      Value::object({{"apiVersion", "coordination.k8s.io/v1"},
                     {"kind", "Lease"},
                     {"metadata", Value::object({{"name", key.name}, {"namespace", key.ns}})},
                     {"spec", spec}});
  written = client_.create(kube::types::kLease, key.ns, lease);
  return written.ok() ? ok() : Status(written.error());
}

void NodeAgent::reconcile(std::stop_token stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      changed_->wait_until(lock, executor_.now() + kRelook,
                           [&] { return dirty_ || stop.stop_requested(); });
      dirty_ = false;
    }
    if (!stop.stop_requested() && pods_.has_synced()) reconcile_once();
  }
}

void NodeAgent::reconcile_once() {
  std::set<std::string> present;
  for (const auto& pod : pods_.store().list()) {
    const std::string& uid = pod->meta.uid;
    present.insert(uid);
    PodRunner* runner = nullptr;
    {
      std::lock_guard lock(mutex_);
      const auto found = runners_.find(uid);
      if (found != runners_.end()) runner = found->second.get();
    }
    if (pod->meta.deleting) {
      const auto grace = std::chrono::seconds(std::clamp<std::int64_t>(
          pod->value["metadata"]["deletionGracePeriodSeconds"].int_or(30), 0, kGraceSecondsMost));
      if (runner != nullptr) {
        runner->terminate(grace);
      } else {  // never ran here, or before a reboot: there is nothing to wait for
        (void)client_.remove(kube::types::kPod, pod->meta.key(),
                             {.uid = uid, .grace_period_seconds = 0});
      }
      continue;
    }
    const std::string phase = pod->value["status"]["phase"].string_or("Pending");
    if (runner != nullptr || phase == "Succeeded" || phase == "Failed") continue;
    if (phase == "Running") {  // of a life before this one
      (void)client_.patch(
          kube::types::kPod, pod->meta.key(), kube::PatchType::kMerge,
          Value::object({{"status", Value::object({{"phase", "Failed"},
                                                   {"reason", "NodeRebooted"},
                                                   {"message", "the node was started anew"}})}}),
          {.subresource = "status"});
      continue;
    }
    start_runner(*pod);
  }
  drop_gone(std::move(present));
}

// A runner is destroyed when it is done: before that its destructor waits for processes that may
// outlive SIGKILL, and the pods that are well would wait with it.
void NodeAgent::drop_gone(std::set<std::string> present) {
  std::vector<std::unique_ptr<PodRunner>> gone;  // ended outside the lock
  {
    std::lock_guard lock(mutex_);
    for (auto it = runners_.begin(); it != runners_.end();) {
      const bool is_known = present.contains(it->first);
      if (!is_known) it->second->abandon();
      if (is_known || !it->second->is_done()) {
        present.insert(it->first);  // what is in its folder is still in use
        ++it;
        continue;
      }
      gone.push_back(std::move(it->second));
      it = runners_.erase(it);
    }
    std::erase_if(uids_, [&](const auto& entry) { return !runners_.contains(entry.second); });
  }
  if (gone.empty()) return;
  gone.clear();
  remove_gone_pods(settings_.root, present, kGonePodsKept);
  give_back_free_pages();
}

void NodeAgent::start_runner(const kube::Object& pod) {
  const std::string address = free_address();
  if (address.empty()) return;  // kPodsMax run here; looked at again when one ends
  auto runner = std::make_unique<PodRunner>(executor_, client_, runner_settings_, volumes_,
                                            pod.value, address);
  LOG_INFO("localnode", "pod {} starts at {}", to_string(pod.meta.key()), address);
  runner->start();
  std::lock_guard lock(mutex_);
  uids_[pod.meta.key()] = pod.meta.uid;
  runners_[pod.meta.uid] = std::move(runner);
}

std::string NodeAgent::free_address() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> used;
  for (const auto& [uid, runner] : runners_) used.insert(runner->pod_ip());
  const std::string prefix = settings_.address.substr(0, settings_.address.rfind('.') + 1);
  for (std::size_t i = 2; i < 2 + kPodsMax; ++i) {
    std::string candidate = prefix + std::to_string(i);
    if (!used.contains(candidate)) return candidate;
  }
  return "";
}

Result<std::shared_ptr<ContainerLog>> NodeAgent::log(const std::string& ns, const std::string& pod,
                                                     const std::string& container) const {
  std::lock_guard lock(mutex_);
  const auto uid = uids_.find({ns, pod});
  if (uid == uids_.end())
    return Error(Code::kNotFound, "pod " + ns + "/" + pod + " does not run here");
  auto log = runners_.at(uid->second)->log(container);
  if (!log) {
    return Error(Code::kInvalid, "container \"" + container + "\" in pod \"" + pod +
                                     "\" is waiting to start: ContainerCreating");
  }
  return log;
}

}  // namespace rubato::localnode
