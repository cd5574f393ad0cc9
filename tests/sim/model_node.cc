#include "tests/sim/model_node.h"

#include "common/net/certificates.h"
#include "common/testing/sanitizer_fibers.h"
#include "common/testing/sim_stream.h"
#include "kube/objects/decode.h"
#include "tests/sim/other_build.h"
#include "tests/sim/sim_host.h"
#include "worker/agent/agent.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace rubato::sim {
namespace {

using json::Value;

constexpr std::size_t kTokensMost = 1u << 20;

std::string environment(const Value& pod, std::string_view name) {
  for (const Value& entry : pod["spec"]["containers"][0]["env"].items())
    if (entry["name"].string_view_or("") == name) return entry["value"].string_or("");
  return "";
}

std::vector<net::Endpoint> endpoints(const std::string& list) {
  std::vector<net::Endpoint> out;
  std::stringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto colon = part.rfind(':');
    out.push_back({part.substr(0, colon),
                   static_cast<std::uint16_t>(std::atoi(part.substr(colon + 1).c_str()))});
  }
  return out;
}

// Random, of a pod.
std::uint64_t word_of(const std::string& uid, std::uint64_t seed) {
  std::uint64_t word = seed;
  for (const char c : uid) word = mix64(word + static_cast<unsigned char>(c));
  return word;
}

std::string secret_of(const Value& pod) {
  for (const Value& volume : pod["spec"]["volumes"].items())
    if (volume["secret"].is_object()) return volume["secret"]["secretName"].string_or("");
  return "";
}

}  // namespace

// Its end, or a power cut, is the end of its workers, which are processes of their own.
void Container::crash() {
  if (workers != nullptr) workers->end_all();
  agent = nullptr;
  workers = nullptr;
  process->crash();
}
void Container::freeze() {
  process->freeze();
  if (workers != nullptr) workers->freeze();
}
void Container::thaw() {
  process->thaw();
  if (workers != nullptr) workers->thaw();
}

ModelNode::ModelNode(const Ground& ground, NodePlan plan)
    : ground_(ground),
      plan_(std::move(plan)),
      own_(ground.executor, ground.seed),
      own_checkpoints_(ground.executor, ground.seed) {
  has_data_ = plan_.illness != Illness::kNoData && plan_.illness != Illness::kHalfData;
}

void ModelNode::register_node() {
  const std::string gpus = std::to_string(plan_.gpus);
  const Value amounts =
      Value::object({{kGpuResource, gpus}, {"cpu", "64"}, {"memory", "256Gi"}, {"pods", "110"}});
  Value labels = Value::object({{"nvidia.com/gpu.product", plan_.gpu_type}});
  if (!plan_.zone.empty()) labels.set("topology.kubernetes.io/zone", plan_.zone);
  const Value node = Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Node"},
       {"metadata", Value::object({{"name", plan_.name}, {"labels", std::move(labels)}})},
       {"status",
        Value::object({{"capacity", amounts},
                       {"allocatable", amounts},
                       {"conditions",
                        Value::array({Value::object(
                            {{"type", "Ready"}, {"status", "True"}, {"reason", "Ready"}})})}})}});
  CHECK(ground_.server.create(kube::types::kNode, "", node).ok());
  if (plan_.illness == Illness::kHalfData) copy_half();
  renew_lease();
}

// Half of the token file, as a copy that was cut short leaves it.
void ModelNode::copy_half() {
  // It was copied while the data could be read.
  const testing::SimDiskFaults faults = std::exchange(ground_.data.faults(), {});
  testing::SimProcess& process = ground_.executor.process(plan_.name + "-copy");
  testing::SimDisk from(process, plan_.name);
  from.mount("/", ground_.data);
  testing::SimDisk to(process, plan_.name);
  to.mount("/data", own_);
  const std::string text = read_text(from, kDataPath, kTokensMost).value();
  CHECK(replace_file(to, kDataPath, text.substr(0, text.size() / 2)).ok());
  ground_.data.faults() = faults;
}

void ModelNode::renew_lease() {
  renewed_ = ground_.executor.now();
  const std::string now = to_rfc3339_micro(ground_.server.clock().wall());
  const kube::Key key{"kube-node-lease", plan_.name};
  const Value spec = Value::object({{"holderIdentity", plan_.name},
                                    {"leaseDurationSeconds", kNodeLeaseSeconds},
                                    {"renewTime", now}});
  const auto patched = ground_.server.patch(kube::types::kLease, key, kube::PatchType::kMerge,
                                            Value::object({{"spec", spec}}));
  if (patched.ok()) return;
  const Value lease =
      Value::object({{"apiVersion", "coordination.k8s.io/v1"},
                     {"kind", "Lease"},
                     {"metadata", Value::object({{"name", key.name}, {"namespace", key.ns}})},
                     {"spec", spec}});
  CHECK(ground_.server.create(kube::types::kLease, key.ns, lease).ok());
}

Container* ModelNode::find(const std::string& pod_uid) {
  const auto found = containers_.find(pod_uid);
  return found == containers_.end() ? nullptr : found->second.get();
}

int ModelNode::gpus_in_use() const {
  int sum = 0;
  for (const auto& [uid, container] : containers_)
    if (!container->exit_status) sum += container->gpus;
  return sum;
}

bool ModelNode::is_well(const std::string& pod_uid, MonoTime since) const {
  const auto found = containers_.find(pod_uid);
  if (found == containers_.end() || !up_ || frozen_ || !ground_.links.reaches(plan_.name, kApiHost))
    return false;
  const Container& container = *found->second;
  if (container.workers != nullptr && container.workers->hangs()) return false;
  return !container.exit_status && !container.terminating && container.process != nullptr &&
         !container.process->frozen() && container.trouble <= since &&
         ground_.executor.now() - container.trouble > kWellAfter;
}

void ModelNode::note_trouble() {
  for (auto& [uid, container] : containers_) container->trouble = ground_.executor.now();
}

// ---- Power

void ModelNode::power_off() {
  if (!up_) return;
  up_ = false;
  ground_.links.cut(plan_.name);  // no reset reaches anybody
  while (!containers_.empty()) forget(containers_.begin()->first);
}

void ModelNode::power_on() {
  if (up_) return;
  up_ = true;
  frozen_ = false;
  ground_.links.heal(plan_.name);
}

void ModelNode::freeze() {
  if (!up_ || frozen_) return;
  frozen_ = true;
  note_trouble();
  for (auto& [uid, container] : containers_)
    if (!container->exit_status) container->freeze();
}

void ModelNode::thaw() {
  if (!frozen_) return;
  frozen_ = false;
  note_trouble();
  for (auto& [uid, container] : containers_)
    if (!container->exit_status) container->thaw();
}

// ---- The kubelet

void ModelNode::sync() {
  if (!up_ || frozen_ || !ground_.links.reaches(plan_.name, kApiHost)) return;
  if (!ground_.witness.nodes().contains(plan_.name)) return;  // no such node any more
  if (ground_.executor.now() - renewed_ >= kNodeRenew) renew_lease();
  std::vector<SeenPod> mine;
  std::set<std::string> uids;
  for (const auto& [key, pod] : ground_.witness.pods()) {
    if (pod.node != plan_.name) continue;
    mine.push_back(pod);
    uids.insert(pod.uid);
  }
  for (auto it = containers_.begin(); it != containers_.end();) {
    Container& container = *it->second;
    if (uids.contains(it->first)) {
      ++it;
      continue;
    }
    // Its object is gone: nothing of it may run on.
    if (!container.exit_status)
      ground_.story.say("{}: pod {} has no object any more and is killed", plan_.name,
                        container.key);
    forget((it++)->first);
  }
  for (const SeenPod& pod : mine) look_at(pod);
}

// In every other story images take their time, and pods of one job start apart.
bool ModelNode::is_pulled(const SeenPod& pod) {
  if (ground_.seed % 2 != 0) return true;
  const std::uint64_t word = word_of(pod.uid, ground_.seed);
  const MonoTime now = ground_.executor.now();
  const MonoTime since = pulls_.try_emplace(pod.uid, now).first->second;
  return now - since >= Duration(static_cast<std::int64_t>(word % kPullMost.count()));
}

// Ends what still runs. A process that is gone stays: fibers that never resume refer to its memory.
void ModelNode::forget(std::string uid) {
  const auto found = containers_.find(uid);
  found->second->crash();
  testing::mark_abandoned(found->second.release());
  containers_.erase(found);
}

void ModelNode::look_at(const SeenPod& pod) {
  Container* container = find(pod.uid);
  if (container == nullptr) {
    if (pod.deleting) return confirm_gone(pod);
    if (pod.finished) return;
    const std::string_view phase = pod.object["status"]["phase"].string_view_or("");
    if (phase == "Running") return report(pod, "Failed", "NodeRebooted", 137);
    if (gpus_in_use() + pod.gpus > plan_.gpus) {
      ground_.story.broken(
          fmt::format("{} is to start pod {} and its GPUs are in use", plan_.name, pod.name));
      return report(pod, "Failed", std::string("OutOf") + kGpuResource, 0);
    }
    if (!ground_.witness.has_secret(pod.ns + "/" + secret_of(pod.object))) return;
    if (!idle_ && is_pulled(pod)) start(pod);
    return;
  }
  if (container->exit_status && !container->reported) {
    container->reported = true;
    const int status = *container->exit_status;
    if (!pod.finished) report(pod, status == 0 ? "Succeeded" : "Failed", "", status);
  }
  if (!pod.deleting) return;
  if (container->exit_status) {
    confirm_gone(pod);
    return forget(pod.uid);
  }
  terminate(*container, pod);
}

void ModelNode::terminate(Container& container, const SeenPod& pod) {
  const MonoTime now = ground_.executor.now();
  if (!container.terminating) {
    container.terminating = true;
    container.trouble = now;
    container.kill_at =
        now + std::chrono::seconds(pod.object["metadata"]["deletionGracePeriodSeconds"].int_or(30));
    ground_.story.say("{}: pod {} is told to end", plan_.name, container.key);
    if (container.agent != nullptr) container.agent->terminate();
  }
  if (now < container.kill_at) return;
  ground_.story.say("{}: pod {} is killed", plan_.name, container.key);
  container.thaw();
  container.crash();
}

void ModelNode::confirm_gone(const SeenPod& pod) {
  (void)ground_.server.remove(kube::types::kPod, {pod.ns, pod.name},
                              {.uid = pod.uid, .grace_period_seconds = 0});
}

void ModelNode::report(const SeenPod& pod, const char* phase, const std::string& reason,
                       int exit_code) {
  Value status = Value::object({{"phase", phase}});
  if (!reason.empty()) status.set("reason", reason);
  Value state = Value::object();
  if (std::string_view(phase) == "Running")
    state.set("running", Value::object());
  else
    state.set("terminated", Value::object({{"exitCode", exit_code}, {"reason", "Exit"}}));
  status.set("containerStatuses",
             Value::array({Value::object({{"name", "worker"}, {"state", std::move(state)}})}));
  if (std::string_view(phase) == "Running") {
    status.set("podIP", "10.0.0.1");
    status.set("conditions",
               Value::array({Value::object({{"type", "Ready"}, {"status", "True"}})}));
  }
  ground_.story.say("{}: pod {} is {} {}", plan_.name, pod.name, phase, reason);
  (void)ground_.server.patch(kube::types::kPod, {pod.ns, pod.name}, kube::PatchType::kMerge,
                             Value::object({{"status", std::move(status)}}),
                             {.subresource = "status"});
}

void ModelNode::start(const SeenPod& pod) {
  auto owned = std::make_unique<Container>();
  Container& container = *owned;
  container.key = pod.ns + "/" + pod.name;
  container.uid = pod.uid;
  container.job_uid = pod.job_uid;
  container.gpus = pod.gpus;
  container.trouble = ground_.executor.now();
  container.process = &ground_.executor.process(pod.name);
  container.network = ground_.attach(*container.process, plan_.name, &as_next_agent);
  if (plan_.illness == Illness::kOtherVersion)
    container.network =
        std::make_unique<EditedNetwork>(std::move(container.network), &as_foreign_agent);
  containers_[pod.uid] = std::move(owned);
  container.process->on_crash([this, &container] {
    if (container.exit_status) return;
    container.exit_status = 137;
  });
  worker::AgentConfig config;
  config.job = environment(pod.object, "RUBATO_JOB");
  config.job_uid = environment(pod.object, "RUBATO_JOB_UID");
  config.pod_name = pod.name;
  config.pod_uid = pod.uid;
  config.node = plan_.name;
  // The kubelet keeps a volume as its Secret is.
  config.credentials = [this, key = kube::Key{pod.ns, secret_of(pod.object)}] {
    return credentials_in(key);
  };
  config.slots = static_cast<std::uint32_t>(
      std::max(1, std::atoi(environment(pod.object, "RUBATO_SLOTS").c_str())));
  container.phases.assign(config.slots, Phase::kStarting);
  config.coordinators = endpoints(environment(pod.object, "RUBATO_COORDINATORS"));
  config.grace = worker::grace_of(
      std::chrono::seconds(std::atoi(environment(pod.object, "RUBATO_GRACE_SECONDS").c_str())));
  config.seed = mix64(ground_.seed ^ std::hash<std::string>()(pod.uid));
  run_agent(container, std::move(config));
  report(pod, "Running", "", 0);
}

Result<worker::AgentCredentials> ModelNode::credentials_in(const kube::Key& secret) {
  const auto object = ground_.server.get(kube::types::kSecret, secret);
  if (!object.ok()) return Error(Code::kNotFound, "the pod's Secret is gone");
  const json::Value& data = (*object)["data"];
  worker::AgentCredentials credentials;
  TRY(credentials.token, net::base64_decode(data["token"].string_or("")));
  TRY(credentials.tls.certificate, net::base64_decode(data["tls.crt"].string_or("")));
  credentials.tls.authority = "model";
  credentials.tls.peer_name = "rubato-operator";
  return credentials;
}

void ModelNode::run_agent(Container& container, worker::AgentConfig config) {
  World* world = ground_.world(container.job_uid);
  CHECK(world != nullptr);
  auto body = [this, world, &container, config = std::move(config)](std::stop_token) {
    SimHost host(
        {.executor = ground_.executor,
         .pod = *container.process,
         .world = *world,
         .job_uid = container.job_uid,
         .pod_uid = container.uid,
         .host = plan_.name,
         .isa = plan_.isa,
         .has_memory = plan_.illness != Illness::kNoMemory,
         .is_old_build = Rng(word_of(container.uid, ground_.seed)).chance(ground_.old_builds),
         .all_compare = ground_.old_builds == 0,
         .times = ground_.times,
         .streams =
             [this](testing::SimProcess& process) {
               return ground_.links.network().attach_streams(process, plan_.name);
             },
         .disk =
             [this](testing::SimProcess& process) {
               auto disk = std::make_unique<testing::SimDisk>(process, plan_.name);
               disk->mount("/", ground_.data);
               disk->mount("/ckpt", checkpoints());
               if (!has_data_) disk->mount("/data", own_);
               return disk;
             },
         .reach =
             [this, &container](std::uint32_t slot, std::string_view name) {
               const std::optional<Phase> phase = phase_named(name);
               CHECK(phase.has_value() && slot < container.phases.size());
               return ground_.reached(container, slot, *phase);
             },
         .harmed = [this, &container] { container.trouble = ground_.executor.now(); }});
    worker::Agent agent(*container.process, *container.network, host, config);
    container.agent = &agent;
    container.workers = &host;
    const int status = agent.run();
    container.agent = nullptr;
    container.workers = nullptr;
    container.exit_status = status;
    ground_.story.say("{}: {} exits with status {}", plan_.name, container.key, status);
  };
  // Owned by the process: when it crashes, the task stays as a dead process's memory does.
  testing::mark_abandoned(new Task(container.process->spawn("agent", std::move(body))));
}

}  // namespace rubato::sim
