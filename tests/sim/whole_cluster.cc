#include "tests/sim/whole_cluster.h"

#include "common/log.h"
#include "common/testing/sim_disk.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "operator/api/rules.h"

#include <algorithm>

namespace rubato::sim {
namespace {

using json::Value;

constexpr Duration kKubeletPeriod = 150ms;
constexpr Duration kNodeMonitor = 1s;
constexpr Duration kNodeGrace = 8s;   // a silent node is marked Unknown
constexpr Duration kEviction = 15s;   // and its pods are deleted
constexpr std::size_t kHistory = 48;  // changes of a kind that a watch may be behind
const char* const kNamespace = "default";
const char* const kOtherNamespace = "rubato-other";  // of a second installation
constexpr Duration kGlance = 100ms;

Value manifest(const JobPlan& job) {
  Value container = Value::object({{"name", "worker"}, {"image", "model"}});
  if (job.shape.is_script) container.set("command", Value::array({"train"}));
  Value pod = Value::object({{"containers", Value::array({container})}});
  for (const std::string& claim : job.claims)
    pod.at("volumes").push_back(Value::object(
        {{"name", claim}, {"persistentVolumeClaim", Value::object({{"claimName", claim}})}}));
  for (const std::string& scratch : job.scratches) {
    const Value claim = Value::object({{"spec", Value::object({{"storageClassName", "zonal"}})}});
    pod.at("volumes").push_back(Value::object(
        {{"name", scratch}, {"ephemeral", Value::object({{"volumeClaimTemplate", claim}})}}));
  }
  Value spec = Value::object(
      {{"queue", job.queue},
       {"gpus", Value::object({{"min", job.min}, {"max", job.max}, {"perPod", job.per_pod}})},
       {"training", training_of(job.shape)},
       {"faultTolerance", Value::object({{"maxRestarts", job.max_restarts}})},
       {"parkSeconds", 15},
       {"gracePeriodSeconds", 8},
       {"template", Value::object({{"spec", pod}})}});
  if (job.shape.is_script) spec.set("runtime", "pytorch");
  if (!job.priority_class.empty()) spec.set("priorityClassName", job.priority_class);
  if (!job.near.empty())
    spec.set("topology", Value::object({{"level", job.level}, {"mode", job.near}}));
  if (job.deadline_seconds) spec.set("activeDeadlineSeconds", *job.deadline_seconds);
  if (job.ttl_seconds) spec.set("ttlSecondsAfterFinished", *job.ttl_seconds);
  Value labels = Value::object();
  if (!job.installation.empty()) labels.set(std::string(api::kLabelInstallation), job.installation);
  return Value::object(
      {{"apiVersion", std::string(api::kApiVersion)},
       {"kind", "TrainingJob"},
       {"metadata",
        Value::object({{"name", job.shape.name}, {"namespace", kNamespace}, {"labels", labels}})},
       {"spec", std::move(spec)}});
}

Value trust_secret(const std::string& ns) {
  return Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Secret"},
       {"metadata", Value::object({{"name", "rubato-operator-trust"}, {"namespace", ns}})},
       {"type", "Opaque"},
       {"data", Value::object({{"ca.crt", net::base64_encode(authority().certificate)},
                               {"ca.key", net::base64_encode(authority().private_key)},
                               {"master-key", net::base64_encode("master")}})}});
}

}  // namespace

void must(const kube::Answer<kube::Written>& written) {
  if (!written.ok()) check_failed(__FILE__, __LINE__, written.error().message);
}

const net::KeyPair& authority() {
  static const net::KeyPair kPair =
      net::make_authority("rubato", WallTime{}, WallTime{} + std::chrono::hours(24 * 36500))
          .value();
  return kPair;
}

WholeCluster::WholeCluster(Scenario scenario, RunOptions options)
    : scenario_(std::move(scenario)),
      options_(options),
      executor_(scenario_.seed),
      network_(executor_, scenario_.seed + 1),
      data_(executor_, scenario_.seed + 2),
      checkpoints_(executor_, scenario_.seed + 3),
      links_(executor_, network_),
      story_(executor_, options.listening, options.aloud),
      server_process_(executor_.process("apiserver")),
      server_(std::make_unique<kube::MemoryServer>(
          server_process_.clock(),
          kube::ServerOptions{.seed = scenario_.seed, .history_events = kHistory})),
      witness_(story_, {.world = [this](const std::string& uid) { return world_of(uid); },
                        .is_well =
                            [this](const std::string& uid, MonoTime since) {
                              const ModelNode* node = node_of_pod(uid);
                              return node != nullptr && node->is_well(uid, since);
                            },
                        .writing_epoch = []() -> std::optional<std::uint64_t> {
                          return serving() == nullptr ? std::nullopt : serving()->epoch();
                        }}),
      ground_{executor_,
              links_,
              *server_,
              story_,
              witness_,
              [this](const std::string& uid) { return world_of(uid); },
              doubling_,
              data_,
              checkpoints_,
              scenario_.seed,
              scenario_.old_builds,
              scenario_.times,
              is_next_version_,
              [this](Container& container, std::uint32_t slot, Phase phase) {
                return reached(container, slot, phase);
              }} {
  serving() = nullptr;
  crashes_.on_crash = [this] { note_met_by_all(FaultKind::kCrashAtWrite); };
  doubling_.rng = Rng(scenario_.seed).fork(23);
  network_.set_link({100us, scenario_.link_delay});
  network_.set_pieces(scenario_.pieces);
  for (const JobPlan& plan : scenario_.jobs)
    jobs_.push_back({.plan = plan, .uid = {}, .world = {}});
}

WholeCluster::~WholeCluster() {
  over_ = true;
  for (auto& node : nodes_) node->power_off();
  for (auto& replica : replicas_) replica->crash();
}

// ---- Start

void WholeCluster::install() {
  testing::SimDisk disk(server_process_, "installer");
  disk.mount("/", data_);
  write_tokens(disk);
  server_->follow([this](const kube::StoreId& id, std::uint64_t, const Value* object) {
    witness_.committed(id, object);
    return ok();
  });
  for (const api::Kind& kind : api::kinds()) {
    must(server_->create(kube::types::kCustomResourceDefinition, "", api::crd(kind)));
  }
  for (const kube::InfoPtr& info : server_->resources()) {
    if (!info->custom) continue;
    server_->set_validator(info->storage_id,
                           [kind = info->type.kind](const Value& before, const Value& now) {
                             std::vector<kube::RuleFailure> out;
                             for (const api::Violation& v : api::validate(kind, before, now))
                               out.push_back({v.field, v.message});
                             return out;
                           });
  }
  const auto named = [](const char* version, const char* kind, const std::string& name) {
    return Value::object(
        {{"apiVersion", version}, {"kind", kind}, {"metadata", Value::object({{"name", name}})}});
  };
  add_namespace("rubato-system");
  if (scenario_.has_two_installations) add_namespace(kOtherNamespace);
  Value high = named("scheduling.k8s.io/v1", "PriorityClass", "high");
  high.set("value", 100);
  must(server_->create(kube::types::kPriorityClass, "", high));
  for (const QueuePlan& plan : scenario_.queues) {
    Value queue = named("rubato.dev/v1alpha1", "TrainingQueue", plan.name);
    Value spec = Value::object();
    if (plan.limit > 0)
      spec.set("quotas", Value::array({Value::object({{"gpuType", "*"}, {"limit", plan.limit}})}));
    if (!plan.parent.empty()) spec.set("parent", plan.parent);
    if (plan.name == "small") spec.set("weight", 3);  // where weights count
    if (plan.cells > 0)
      spec.set("cells", Value::array({Value::object(
                            {{"gpuType", "fast"}, {"level", "node"}, {"count", plan.cells}})}));
    queue.set("spec", std::move(spec));
    must(server_->create(api::kTrainingQueue, "", queue));
  }
  if (!scenario_.policy) return;
  Value policy = named("rubato.dev/v1alpha1", "SchedulingPolicy", "default");
  policy.set("spec", Value::object(
                         {{"roundSeconds", scenario_.policy->round_seconds},
                          {"gangStartSeconds", 20},
                          {"rescaleBudget",
                           Value::object({{"perJobSeconds", scenario_.policy->growth_pause_seconds},
                                          {"jobsPerRound", scenario_.policy->grown_per_round}})}}));
  must(server_->create(api::kSchedulingPolicy, "", policy));
}

void WholeCluster::add_node(NodePlan plan) {
  nodes_.push_back(std::make_unique<ModelNode>(ground_, std::move(plan)));
  nodes_.back()->register_node();
  sync_node(nodes_.size() - 1);
}

void WholeCluster::sync_node(std::size_t index) {
  if (over_) return;
  nodes_[index]->sync();
  const std::uint64_t spread = mix64(scenario_.seed * 31 + index) % 50;
  later(kKubeletPeriod + std::chrono::milliseconds(spread), [this, index] { sync_node(index); });
}

void WholeCluster::submit(Job& job) {
  must(server_->create(api::kTrainingJob, kNamespace, manifest(job.plan)));
  const auto made = server_->get(api::kTrainingJob, {kNamespace, job.plan.shape.name});
  job.uid = kube::uid_of(*made);
  job.world = std::make_unique<World>(story_, job.plan.shape,
                                      [this](const std::string& uid) { return is_heard(uid); });
  job.submitted = true;
  story_.say("job {} is submitted: {} to {} GPUs, {} a pod, queue {}, {} steps",
             job.plan.shape.name, job.plan.min, job.plan.max, job.plan.per_pod, job.plan.queue,
             job.plan.shape.steps);
}

void WholeCluster::submit(const JobPlan& plan) {
  jobs_.push_back({.plan = plan, .uid = {}, .world = {}});
  submit(jobs_.back());
}

bool WholeCluster::forget(const std::string& job) {
  const auto found =
      std::ranges::find_if(jobs_, [&](const Job& each) { return each.plan.shape.name == job; });
  CHECK(found != jobs_.end());
  if (status_of(*found) != nullptr) return false;
  for (const auto& node : nodes_)
    for (const auto& [uid, container] : node->containers())
      if (container->job_uid == found->uid) return false;
  testing::SimDisk disk(server_process_, "janitor");
  disk.mount("/ckpt", checkpoints_);
  CHECK(disk.remove_all(found->plan.shape.folder()).ok());
  jobs_.erase(found);
  return true;
}

void WholeCluster::add_namespace(const std::string& ns) {
  must(server_->create(kube::types::kNamespace, "",
                       Value::object({{"apiVersion", "v1"},
                                      {"kind", "Namespace"},
                                      {"metadata", Value::object({{"name", ns}})}})));
  must(server_->create(kube::types::kSecret, ns, trust_secret(ns)));
}

void WholeCluster::move_operators() {
  story_.say("the operators are moved to another namespace");
  add_namespace(kOtherNamespace);
  for (auto& replica : replicas_) {
    links_.touch(replica->host());
    replica->crash();
    replica->move(kOtherNamespace);
  }
}

void WholeCluster::start() {
  install();
  for (const NodePlan& plan : scenario_.nodes) {
    if (plan.added_at == Duration(0)) {
      add_node(plan);
      continue;
    }
    later(plan.added_at, [this, plan] {
      story_.say("node {} is added", plan.name);
      add_node(plan);
    });
  }
  std::vector<std::string> addresses;
  for (const char* host : {"op-a", "op-b"})
    addresses.push_back(fmt::format("{}:{}", host, kCoordinatorPort));
  Rng rng = Rng(scenario_.seed).fork(5);
  for (const char* host : {"op-a", "op-b"}) {
    ReplicaSettings settings;
    settings.host = host;
    settings.coordinators = addresses;
    if (scenario_.has_two_installations) {
      settings.coordinators = {addresses[replicas_.size()]};
      if (!replicas_.empty()) settings.ns = kOtherNamespace;
      if (!replicas_.empty()) settings.installation.name = "other";
    }
    settings.api_delay = scenario_.api_delay;
    settings.lease = scenario_.lease;
    settings.record = options_.record;
    settings.seed = scenario_.seed * 2 + replicas_.size();
    if (scenario_.clocks_differ) {
      settings.monotonic_skew = std::chrono::hours(rng.below(48));
      settings.wall_skew = std::chrono::milliseconds(rng.below(3000)) - 1500ms;
    }
    replicas_.push_back(std::make_unique<Replica>(ground_, crashes_, std::move(settings)));
  }
  for (const Fault& fault : scenario_.faults) {
    if (fault.kind == FaultKind::kCrashAtWrite)
      crashes_.due[fault.more] = true;
    else
      later(fault.at, [this, fault] { inject(fault); });
  }
  for (auto& replica : replicas_) replica->start();
  for (Job& job : jobs_) later(job.plan.submit_at, [this, &job] { submit(job); });
  look_after_nodes();
}

// ---- What Kubernetes' own controllers do

void WholeCluster::look_after_nodes() {
  if (over_) return;
  const MonoTime now = executor_.now();
  for (auto& node : nodes_) {
    const auto object = witness_.nodes().find(node->name());
    if (object == witness_.nodes().end()) continue;
    const bool silent = now - node->last_renewed() > kNodeGrace;
    const std::string_view seen =
        object->second["status"]["conditions"][0]["status"].string_view_or("");
    const std::string_view wanted = silent ? "Unknown" : "True";
    if (!silent) unready_.erase(node->name());
    if (seen != wanted) {
      story_.say("node {} is marked Ready={}", node->name(), wanted);
      if (silent) unready_[node->name()] = now;
      const Value condition = Value::object({{"type", "Ready"}, {"status", wanted}});
      (void)server_->patch(
          kube::types::kNode, {"", node->name()}, kube::PatchType::kMerge,
          Value::object({{"status", Value::object({{"conditions", Value::array({condition})}})}}),
          {.subresource = "status"});
    }
  }
  std::vector<std::pair<kube::Key, bool>> doomed;
  for (const auto& [key, pod] : witness_.pods()) {
    if (pod.node.empty()) continue;
    const bool orphan = !witness_.nodes().contains(pod.node);
    const auto since = unready_.find(pod.node);
    const bool evicted = since != unready_.end() && now - since->second > kEviction &&
                         !pod.deleting && !pod.finished;
    if (orphan || evicted) doomed.push_back({{pod.ns, pod.name}, orphan});
  }
  for (const auto& [key, force] : doomed)
    (void)server_->remove(kube::types::kPod, key, {.grace_period_seconds = force ? 0 : -1});
  later(kNodeMonitor, [this] { look_after_nodes(); });
}

// ---- The story

bool WholeCluster::run_until(const std::function<bool()>& done, Duration limit) {
  return executor_.run_until([&] { return story_.violation().has_value() || done(); }, limit) &&
         !story_.violation();
}

RunResult WholeCluster::run() {
  configure_log(
      {.level = options_.aloud || options_.listening ? LogLevel::kInfo : LogLevel::kError});
  set_log_sink([this](LogLevel level, std::string_view component, std::string_view text) {
    story_.say("  {}[{}] {}", level == LogLevel::kInfo ? "" : "! ", component, text);
  });
  const MonoTime begin = executor_.now();
  start();
  const auto all_submitted = [&] {
    return std::all_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.submitted; });
  };
  // Asked after every event; it can only change with an object, or as time goes by.
  const auto quiet_end = [&, changes = ~std::uint64_t{0}, again = MonoTime{}]() mutable {
    if (changes == witness_.changes() && executor_.now() < again) return false;
    changes = witness_.changes();
    again = executor_.now() + kGlance;
    return all_finished() && unexplained().empty();
  };
  RunResult result;
  const Duration trouble = scenario_.faults.empty() ? 0s : scenario_.trouble + 8s;
  run_until([&] { return executor_.now() - begin >= trouble && all_submitted(); },
            scenario_.trouble + 60s);
  if (!story_.violation()) {
    calm();
    look_for_idle_pods();
  }
  if (!run_until(quiet_end, options_.quiet_limit) && !story_.violation()) {
    const std::string left = unexplained();
    story_.broken(all_finished() ? left : "all is quiet and not over:" + why_not_over());
  }
  result.ok = !story_.violation();
  if (!result.ok) result.what = *story_.violation();
  result.virtual_seconds = std::chrono::duration<double>(executor_.now() - begin).count();
  for (const Job& job : jobs_) {
    if (!job.world) continue;
    result.decisions += job.world->decisions();
    result.generations += job.world->generations();
    result.members = std::max(result.members, job.world->most_members());
  }
  for (const auto& replica : replicas_) result.lives += replica->lives();
  result.writes = crashes_.writes;
  result.digest = executor_.digest();
  result.coverage = coverage_;
  result.story.assign(story_.lines().begin(), story_.lines().end());
  set_log_sink({});
  return result;
}

}  // namespace rubato::sim
