// What disks, starved processes, clocks, bad newcomers and administrators do to a WholeCluster.
#include "operator/api/resources.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <utility>

namespace rubato::sim {

using json::Value;
using testing::SimDiskFaults;

namespace {
constexpr Duration kDelayStep = 20ms;  // of one operation of a slow disk; up to 50 times as much
constexpr Duration kClockStep = 10s;   // of a clock that jumps; up to 360 times as much
constexpr Duration kPauseMost = 20s;   // of monotonic time, as a machine that was suspended has it
constexpr std::size_t kManyLost = 4;   // pods that are lost at once
constexpr std::uint64_t kFilesOfOne = 4;      // of a checkpoint that a bit may flip in
constexpr std::uint64_t kForeignBelow = 200;  // of a thousand newcomers: of a build of other times
const char* const kFiles[kFilesOfOne] = {"model.safetensors", "optimizer.safetensors", "run.json",
                                         "steps.bin"};
}  // namespace

// ---- Disks

void WholeCluster::disk_fault(const Fault& fault) {
  using K = FaultKind;
  const bool is_of_data = fault.kind == K::kDataSlow || fault.kind == K::kDataBroken;
  testing::SimVolume& volume = is_of_data ? data_ : checkpoints_;
  SimDiskFaults& disk = volume.faults();
  const auto step = static_cast<std::int64_t>(1 + fault.more % 50);
  story_.say("FAULT {} for {:.1f} s", name_of(fault.kind), seconds(fault.spell));
  const auto is = [kind = fault.kind](auto... kinds) { return ((kind == kinds) || ...); };
  if (is(K::kDiskSlow, K::kDataSlow)) disk.delay = disk.jitter = step * kDelayStep;
  if (is(K::kDiskFull)) disk.capacity = volume.used();
  if (is(K::kDiskBroken, K::kDataBroken)) disk.broken = true;
  if (is(K::kDiskLate)) disk.lag = step * kDelayStep;
  later(fault.spell, [this, kind = fault.kind, is, &volume] {
    SimDiskFaults& well_again = volume.faults();
    const SimDiskFaults well;
    story_.say("{} is over", name_of(kind));
    if (is(K::kDiskSlow, K::kDataSlow)) well_again.delay = well_again.jitter = well.delay;
    if (is(K::kDiskFull)) well_again.capacity = well.capacity;
    if (is(K::kDiskBroken, K::kDataBroken)) well_again.broken = false;
    if (is(K::kDiskLate)) well_again.lag = well.lag;
  });
}

// In the newest checkpoint, where there is an older one to go back to, unless it is the last: then
// nothing would be left to show.
void WholeCluster::flip_bit(const Fault& fault, Job& job) {
  const SimDiskFaults faults = std::exchange(checkpoints_.faults(), {});  // nothing may wait here
  const auto restore = [&] { checkpoints_.faults() = faults; };
  testing::SimDisk disk(server_process_, "villain");
  disk.mount("/ckpt", checkpoints_);
  const std::string folder = job.plan.shape.folder();
  const auto names = disk.list(folder).value_or({});
  const auto newest = std::ranges::find_if(
      names.rbegin(), names.rend(), [](const auto& name) { return name.starts_with("step-"); });
  const auto checkpoints = std::ranges::count_if(
      names, [](const std::string& name) { return name.starts_with("step-"); });
  const std::string last = fmt::format("step-{:08}", job.plan.shape.last_step());
  if (checkpoints < 2 || *newest == last) return restore();
  const std::string file = folder + "/" + *newest + "/" + kFiles[fault.more % kFilesOfOne];
  const auto about = disk.stat(file);
  restore();
  if (!about.ok() || about->size == 0) return;
  story_.say("FAULT a bit of {} flips", file);
  (void)checkpoints_.flip_bit(file.substr(std::string("/ckpt").size()),
                              fault.pick * 7919 % about->size, static_cast<int>(fault.more % 8));
}

// ---- Memory

void WholeCluster::flip_memory(const Fault& fault, Container& container) {
  if (container.workers == nullptr) return;
  story_.say("FAULT a bit flips in the memory of the worker of pod {}", container.key);
  container.workers->flip_bit(0, 1000 * fault.pick + fault.more);
}

// ---- Processors and clocks

// One process gets no processor, and what is said to it piles up.
void WholeCluster::starve(const Fault& fault) {
  if (fault.more % 3 == 0) {
    Fault frozen = fault;
    frozen.kind = FaultKind::kOperatorFrozen;
    return operator_fault(frozen);
  }
  on_pod(fault, fault.more % 3 == 1 ? &WholeCluster::starve_agent : &WholeCluster::starve_worker);
}

void WholeCluster::starve_agent(const Fault& fault, Container& container) {
  story_.say("FAULT the agent of {} gets no processor for {:.1f} s", container.key,
             seconds(fault.spell));
  links_.touch(node_of_pod(container.uid)->name());
  container.process->freeze();
  later(fault.spell, [this, uid = container.uid] {
    ModelNode* node = node_of_pod(uid);
    if (node == nullptr) return;
    links_.touch(node->name());
    trouble_everywhere();
    if (!node->is_frozen() && !node->find(uid)->exit_status) node->find(uid)->process->thaw();
  });
}

void WholeCluster::starve_worker(const Fault& fault, Container& container) {
  if (container.workers == nullptr) return;
  story_.say("FAULT a worker of {} gets no processor for {:.1f} s", container.key,
             seconds(fault.spell));
  container.workers->freeze();
  later(fault.spell, [this, uid = container.uid] {
    ModelNode* node = node_of_pod(uid);
    if (node == nullptr || node->is_frozen()) return;
    trouble_everywhere();
    const Container& there = *node->find(uid);
    if (there.workers != nullptr && !there.process->frozen()) there.workers->thaw();
  });
}

// The wall clock of a machine jumps either way; its monotonic one may too, ahead.
void WholeCluster::jump_clock(const Fault& fault, ModelNode& node) {
  const auto by = (static_cast<std::int64_t>(fault.more % 721) - 360) * kClockStep;
  const Duration pause = fault.pick % 2 == 0 ? Duration(0) : fault.spell % kPauseMost;
  story_.say("FAULT the clock of {} jumps by {:.0f} s, its uptime by {:.1f} s", node.name(),
             seconds(by), seconds(pause));
  links_.touch(node.name());
  for (auto& [uid, container] : node.containers()) {
    if (container->exit_status) continue;
    container->process->skew(pause, by);
    if (container->workers != nullptr) container->workers->skew(pause, by);
  }
}

// ---- Newcomers

void WholeCluster::add_bad_node(const Fault& fault) {
  NodePlan plan;
  plan.name = fmt::format("bad{}", nodes_.size());
  plan.gpu_type = scenario_.nodes.front().gpu_type;
  plan.gpus = 2;
  const auto illness = static_cast<Illness>(1 + fault.more % (kIllnesses - 1));
  plan.illness = fault.more < kForeignBelow ? Illness::kOtherVersion : illness;
  if (plan.illness == Illness::kOtherBits) plan.isa = "other";
  story_.say("FAULT node {} is added: {}", plan.name, name_of(plan.illness));
  trouble_everywhere();
  add_node(plan);
}

// ---- Administrators

void WholeCluster::delete_lease() {
  story_.say("FAULT the Lease of the operators is deleted");
  (void)server_->remove(kube::types::kLease, {"rubato-system", "rubato-operator"});
}

void WholeCluster::delete_secret(const Fault&, Job& job) {
  const std::string prefix = std::string("default/") + job.plan.shape.name;
  const auto secrets = server_->list(kube::types::kSecret, "default", {});
  if (!secrets.ok()) return;
  for (const auto& secret : secrets->items) {
    const std::string name = kube::name_of(secret);
    if (!(std::string("default/") + name).starts_with(prefix)) continue;
    story_.say("FAULT secret {} is deleted", name);
    (void)server_->remove(kube::types::kSecret, {"default", name});
  }
}

void WholeCluster::delete_pod_at_once(const Fault&, Container& container) {
  story_.say("FAULT pod {} is deleted by hand, without grace", container.key);
  (void)server_->remove(kube::types::kPod, kube::parse_key(container.key),
                        {.uid = container.uid, .grace_period_seconds = 0});
}

// Its kubelet registers it anew after a while.
void WholeCluster::delete_node_object(const Fault& fault, ModelNode& node) {
  story_.say("FAULT the object of node {} is deleted", node.name());
  links_.touch(node.name());
  (void)server_->remove(kube::types::kNode, {"", node.name()});
  later(fault.spell, [this, &node] {
    if (!node.is_up() || witness_.nodes().contains(node.name())) return;
    story_.say("node {} registers itself", node.name());
    links_.touch(node.name());
    trouble_everywhere();
    node.register_node();
  });
}

// Deleted, and submitted again under its name, with a folder of its own.
void WholeCluster::recreate_job(const Fault& fault, Job& job) {
  story_.say("FAULT {} is deleted and will come again", job.plan.shape.name);
  job.deleted = true;
  (void)server_->remove(api::kTrainingJob, {"default", job.plan.shape.name});
  again(fault.spell, job);
}

void WholeCluster::again(Duration wait, Job& job) {
  later(wait, [this, wait, &job] {
    if (over_) return;
    if (status_of(job) != nullptr) return again(1s, job);
    retired_[job.uid] = std::move(job.world);  // its last processes may still end
    job.plan.shape.life += 1;
    job.deleted = false;
    submit(job);
  });
}

// ---- Many at once

void WholeCluster::lose_many(const Fault& fault) {
  std::vector<std::pair<ModelNode*, std::string>> those;
  for (auto& node : nodes_)
    if (node->is_up() && !node->is_frozen())
      for (auto& [uid, container] : node->containers())
        if (!container->exit_status) those.emplace_back(node.get(), uid);
  const std::size_t count = std::min(those.size(), kManyLost + fault.more % kManyLost);
  story_.say("FAULT {} of {} pods crash at once", count, those.size());
  trouble_everywhere();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [node, uid] = those[(fault.pick + i) % those.size()];
    node->find(uid)->crash();
  }
}

}  // namespace rubato::sim
