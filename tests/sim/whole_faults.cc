// What faults of nodes, pods and jobs do to a WholeCluster; the others: whole_api_faults.cc.
#include "operator/api/resources.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <array>

namespace rubato::sim {

using json::Value;

namespace {
constexpr std::uint64_t kPassMost = 3;
}  // namespace

void WholeCluster::inject(const Fault& fault) {
  if (over_) return;
  if (fault.phase) return armed_.push_back({fault, fault.pick % kPassMost});
  has_noted_ = false;
  inject_now(fault);
  if (!has_noted_) note_met_by_all(fault.kind);
}

void WholeCluster::inject_now(const Fault& fault) {
  using K = FaultKind;
  switch (fault.kind) {
    case K::kPowerCut:
      return on_node(fault, &WholeCluster::cut_power);
    case K::kNodeGone:
      return on_node(fault, &WholeCluster::lose_node);
    case K::kNodeCut:
      return on_node(fault, &WholeCluster::cut_node);
    case K::kNodeCutOperator:
      return on_node(fault, &WholeCluster::cut_from_operator);
    case K::kNodesApart:
      return on_node(fault, &WholeCluster::part_nodes);
    case K::kNodeFrozen:
      return on_node(fault, &WholeCluster::freeze_node);
    case K::kCordon:
      return on_node(fault, &WholeCluster::cordon);
    case K::kNodeIdle:
      return on_node(fault, &WholeCluster::idle_node);
    case K::kReset:
      return on_node(fault, &WholeCluster::reset);
    case K::kPodFrozen:
      return on_pod(fault, &WholeCluster::freeze_pod);
    case K::kPodCrash:
      return on_pod(fault, &WholeCluster::crash_pod);
    case K::kWorkerKilled:
      return on_pod(fault, &WholeCluster::kill_worker);
    case K::kWorkerHangs:
      return on_pod(fault, &WholeCluster::hang_worker);
    case K::kPodDeleted:
      return on_pod(fault, &WholeCluster::delete_pod);
    case K::kSuspend:
      return on_job(fault, &WholeCluster::suspend);
    case K::kScale:
      return on_job(fault, &WholeCluster::scale);
    case K::kJobDeleted:
      return on_job(fault, &WholeCluster::delete_job);
    case K::kSlowNetwork:
      return slow_network(fault);
    case K::kDuplicates:
      return double_messages(fault);
    case K::kApiAway:
    case K::kApiFlaky:
    case K::kApiExpired:
    case K::kSlowWatch:
    case K::kLateWrites:
      return api_fault(fault);
    case K::kCrashAtWrite:
      return;  // by count, from the start
    case K::kOperatorCrash:
    case K::kOperatorFrozen:
    case K::kOperatorStop:
    case K::kClock:
      return operator_fault(fault);
    case K::kLeaseLost:
      return lose_lease();
    case K::kStoreRestored:
      return restore_store(fault);
    case K::kDiskSlow:
    case K::kDiskFull:
    case K::kDiskBroken:
    case K::kDiskLate:
    case K::kDataSlow:
    case K::kDataBroken:
      return disk_fault(fault);
    case K::kBitFlip:
      return on_job(fault, &WholeCluster::flip_bit);
    case K::kStarved:
      return starve(fault);
    case K::kNodeClock:
      return on_node(fault, &WholeCluster::jump_clock);
    case K::kBadNewcomer:
      return add_bad_node(fault);
    case K::kLeaseDeleted:
      return delete_lease();
    case K::kSecretDeleted:
      return on_job(fault, &WholeCluster::delete_secret);
    case K::kPodForced:
      return on_pod(fault, &WholeCluster::delete_pod_at_once);
    case K::kNodeObject:
      return on_node(fault, &WholeCluster::delete_node_object);
    case K::kJobRecreated:
      return on_job(fault, &WholeCluster::recreate_job);
    case K::kManyLost:
      return lose_many(fault);
    case K::kMemoryFlip:
      return on_pod(fault, &WholeCluster::flip_memory);
    case K::kResize:
      return on_job(fault, &WholeCluster::resize);
    case K::kNextVersion:
      return change_version(fault);
    case K::kPolicy:
      return change_policy(fault);
    case K::kSplit:
      return split(fault);
    case K::kMaintained:
    case K::kReclaimed:
      return on_node(fault, &WholeCluster::take_away);
  }
}

// ---- Whom

ModelNode* WholeCluster::pick_node(const Fault& fault, bool up) {
  std::vector<ModelNode*> those;
  for (auto& node : nodes_)
    if (node->is_up() == up && !node->is_frozen() && witness_.nodes().contains(node->name()))
      those.push_back(node.get());
  return those.empty() ? nullptr : those[fault.pick % those.size()];
}

Container* WholeCluster::pick_container(const Fault& fault) {
  std::vector<Container*> those;
  for (auto& node : nodes_) {
    if (!node->is_up() || node->is_frozen()) continue;
    for (auto& [uid, container] : node->containers())
      if (!container->exit_status && !container->process->frozen())
        those.push_back(container.get());
  }
  return those.empty() ? nullptr : those[fault.pick % those.size()];
}

WholeCluster::Job* WholeCluster::pick_job(const Fault& fault) {
  std::vector<Job*> those;
  for (Job& job : jobs_)
    if (job.submitted && !job.deleted && !is_true(job, "Complete")) those.push_back(&job);
  return those.empty() ? nullptr : those[fault.pick % those.size()];
}

Replica* WholeCluster::leader() {
  for (auto& replica : replicas_)
    if (replica->is_alive() && !replica->is_frozen() && replica->is_leader()) return replica.get();
  return nullptr;
}

void WholeCluster::trouble_everywhere() {
  for (auto& node : nodes_) node->note_trouble();
}

// ---- Nodes

// Peers of its pods see broken links; whose fault that is only the coordinator can find out.
void WholeCluster::on_node(const Fault& fault,
                           void (WholeCluster::*act)(const Fault&, ModelNode&)) {
  has_noted_ = true;
  ModelNode* node = pick_node(fault);
  if (node == nullptr) return;
  note_met(fault.kind, *node);
  trouble_everywhere();
  (this->*act)(fault, *node);
}

void WholeCluster::cut_power(const Fault& fault, ModelNode& node) {
  story_.say("FAULT {} loses its power for {:.1f} s", node.name(), seconds(fault.spell));
  node.power_off();
  node.checkpoints().lose_power(node.name());
  later(fault.spell, [this, &node] {
    if (node.is_up() || !witness_.nodes().contains(node.name())) return;
    story_.say("{} is powered on", node.name());
    node.power_on();
  });
}

void WholeCluster::lose_node(const Fault& fault, ModelNode& node) {
  const std::string name = node.name();
  story_.say("FAULT {} is gone for good", name);
  node.power_off();
  node.checkpoints().lose_power(name);
  later(fault.spell, [this, &node, name] {
    node.power_off();  // calm() may have switched it on meanwhile
    story_.say("the object of node {} is deleted", name);
    (void)server_->remove(kube::types::kNode, {"", name});
    (void)server_->remove(kube::types::kLease, {"kube-node-lease", name});
  });
  NodePlan plan = node.plan();
  plan.name = name + "x";
  later(fault.spell + 2s, [this, plan] {
    story_.say("node {} is added", plan.name);
    add_node(plan);
  });
}

void WholeCluster::cut_node(const Fault& fault, ModelNode& node) {
  const std::string name = node.name();
  story_.say("FAULT {} is cut off for {:.1f} s", name, seconds(fault.spell));
  links_.cut(name);
  later(fault.spell, [this, name] {
    story_.say("{} is healed", name);
    trouble_everywhere();
    links_.heal(name);
  });
}

void WholeCluster::cut_from_operator(const Fault& fault, ModelNode& node) {
  const std::string host = replicas_[fault.more % replicas_.size()]->host();
  story_.say("FAULT {} does not reach {} for {:.1f} s", node.name(), host, seconds(fault.spell));
  cut_pair(fault, node.name(), host);
}

void WholeCluster::part_nodes(const Fault& fault, ModelNode& node) {
  const std::string other = nodes_[fault.more % nodes_.size()]->name();
  if (other == node.name()) return;
  story_.say("FAULT {} and {} do not reach each other for {:.1f} s", node.name(), other,
             seconds(fault.spell));
  for (const std::string& end : {node.name(), other}) note_parted(end);
  cut_pair(fault, node.name(), other);
  later(fault.spell, [this, ends = std::array{node.name(), other}] {
    for (const std::string& end : ends) note_parted(end);
  });
}

void WholeCluster::note_parted(const std::string& node) {
  const MonoTime now = executor_.now();
  parted_.try_emplace(node, Parted{now, now}).first->second.last = now;
}

void WholeCluster::cut_pair(const Fault& fault, const std::string& a, const std::string& b) {
  links_.cut_pair(a, b);
  later(fault.spell, [this, a, b] {
    story_.say("{} and {} reach each other again", a, b);
    trouble_everywhere();
    links_.heal_pair(a, b);
  });
}

void WholeCluster::freeze_node(const Fault& fault, ModelNode& node) {
  story_.say("FAULT {} freezes for {:.1f} s", node.name(), seconds(fault.spell));
  links_.touch(node.name());
  node.freeze();
  later(fault.spell, [this, &node] {
    links_.touch(node.name());
    if (!node.is_up()) return;
    story_.say("{} thaws", node.name());
    trouble_everywhere();
    node.thaw();
  });
}

void WholeCluster::cordon(const Fault& fault, ModelNode& node) {
  story_.say("FAULT {} is cordoned", node.name());
  set_cordoned(node.name(), true);
  later(fault.spell, [this, name = node.name()] {
    story_.say("node {} is uncordoned", name);
    set_cordoned(name, false);
  });
}

void WholeCluster::set_cordoned(const std::string& node, bool on) {
  (void)server_->patch(kube::types::kNode, {"", node}, kube::PatchType::kMerge,
                       Value::object({{"spec", Value::object({{"unschedulable", on}})}}));
}

void WholeCluster::idle_node(const Fault& fault, ModelNode& node) {
  story_.say("FAULT {} starts no pod for {:.1f} s", node.name(), seconds(fault.spell));
  node.set_idle(true);
  later(fault.spell, [this, &node] {
    story_.say("{} starts pods again", node.name());
    node.set_idle(false);
  });
}

void WholeCluster::reset(const Fault&, ModelNode& node) {
  story_.say("FAULT connections of {} are reset", node.name());
  links_.touch(node.name());
  network_.reset_connections(node.name());
}

// ---- Pods

void WholeCluster::on_pod(const Fault& fault, void (WholeCluster::*act)(const Fault&, Container&)) {
  has_noted_ = true;
  Container* container = pick_container(fault);
  if (container == nullptr) return;
  note_met(fault.kind, *container);
  trouble_everywhere();
  (this->*act)(fault, *container);
}

void WholeCluster::freeze_pod(const Fault& fault, Container& container) {
  story_.say("FAULT pod {} freezes for {:.1f} s", container.key, seconds(fault.spell));
  links_.touch(node_of_pod(container.uid)->name());
  container.freeze();
  later(fault.spell, [this, uid = container.uid] {
    ModelNode* node = node_of_pod(uid);
    if (node != nullptr) links_.touch(node->name());
    if (node == nullptr || node->is_frozen() || node->find(uid)->exit_status) return;
    story_.say("pod {} thaws", node->find(uid)->key);
    trouble_everywhere();
    node->find(uid)->thaw();
  });
}

void WholeCluster::crash_pod(const Fault&, Container& container) {
  story_.say("FAULT pod {} crashes", container.key);
  container.crash();
}

void WholeCluster::kill_worker(const Fault&, Container& container) { kill_worker_of(container, 0); }

void WholeCluster::hang_worker(const Fault& fault, Container& container) {
  hang_worker_of(fault, container, 0);
}

void WholeCluster::delete_pod(const Fault&, Container& container) {
  story_.say("FAULT pod {} is deleted by hand", container.key);
  (void)server_->remove(kube::types::kPod, kube::parse_key(container.key), {.uid = container.uid});
}

// ---- Jobs

void WholeCluster::on_job(const Fault& fault, void (WholeCluster::*act)(const Fault&, Job&)) {
  has_noted_ = true;
  Job* job = pick_job(fault);
  if (job == nullptr) return;
  note_met(fault.kind, *job);
  (this->*act)(fault, *job);
}

void WholeCluster::patch_job(const Job& job, Value spec) {
  if (job.deleted) return;
  must(server_->patch(api::kTrainingJob, {"default", job.plan.shape.name}, kube::PatchType::kMerge,
                      Value::object({{"spec", std::move(spec)}})));
}

void WholeCluster::suspend(const Fault& fault, Job& job) {
  story_.say("FAULT {} is suspended for {:.1f} s", job.plan.shape.name, seconds(fault.spell));
  patch_job(job, Value::object({{"suspend", true}}));
  later(fault.spell, [this, &job] {
    story_.say("{} is resumed", job.plan.shape.name);
    patch_job(job, Value::object({{"suspend", false}}));
  });
}

void WholeCluster::scale(const Fault& fault, Job& job) {
  const int steps = static_cast<int>(fault.more % 4);
  const int most = std::min(job.plan.min + steps * job.plan.per_pod,
                            static_cast<int>(job.plan.shape.micro_batches));
  story_.say("FAULT {} is scaled to at most {} GPUs", job.plan.shape.name, most);
  patch_job(job, Value::object({{"gpus", Value::object({{"max", most}})}}));
}

void WholeCluster::delete_job(const Fault&, Job& job) {
  if (jobs_.size() < 2) return;
  story_.say("FAULT {} is deleted", job.plan.shape.name);
  job.deleted = true;
  (void)server_->remove(api::kTrainingJob, {"default", job.plan.shape.name});
}

}  // namespace rubato::sim
