// What befalls an installation now and then: its Lease and its store, its jobs' sizes, its version.
#include "operator/api/resources.h"
#include "scheduler/policy/registry.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>

namespace rubato::sim {

using json::Value;

namespace {
constexpr Duration kRegistersAfter = 2s;  // a kubelet whose Node object is gone
constexpr Duration kRollout = 2s;         // from one replica to the next
constexpr int kSizeMost = 8;
}  // namespace

void WholeCluster::lose_lease() {
  story_.say("FAULT the operators die, and their Lease is deleted");
  for (auto& replica : replicas_) {
    links_.touch(replica->host());
    replica->crash();
  }
  (void)server_->remove(kube::types::kLease, {"rubato-system", "rubato-operator"});
}

// ---- The store

// Objects go back in time, and nothing else does: neither processes nor what operators remember.
// Kubelets register again whose nodes came later, and people tell again what they have told since.
void WholeCluster::restore_store(const Fault& fault) {
  story_.say("FAULT a backup of the store is taken, to be restored in {:.1f} s",
             seconds(fault.spell));
  kube::ObjectStore::Backup backup;
  server_->visit([&](const kube::ObjectStore& store) { backup = store.backup(); });
  later(fault.spell, [this, backup = std::move(backup)] {
    if (over_) return;
    story_.say("the store is restored");
    trouble_everywhere();
    server_->go_back_to(backup);
    for (Job& job : jobs_)
      if (job.world) job.world->store_went_back();
    for (const auto& [uid, world] : retired_)  // the store may show an earlier life again
      if (world) world->store_went_back();
    witness_.store_went_back(backup);
    for (Job& job : jobs_) restore_job(job, backup);
    later(kRegistersAfter, [this] {
      trouble_everywhere();
      for (auto& node : nodes_)
        if (node->is_up() && !witness_.nodes().contains(node->name())) node->register_node();
    });
  });
}

void WholeCluster::restore_job(Job& job, const kube::ObjectStore::Backup& backup) {
  if (!job.submitted) return;
  const std::string key = std::string("default/") + job.plan.shape.name;
  const auto found = std::ranges::find_if(backup, [&](const auto& entry) {
    return entry.first.kind == "trainingjobs.rubato.dev" && entry.first.key == key;
  });
  const std::string uid = found == backup.end() ? "" : kube::uid_of(found->second);
  if (uid == job.uid && !job.deleted) {
    const Value sizes = Value::object({{"min", job.plan.min}, {"max", job.plan.max}});
    return patch_job(job, Value::object({{"suspend", false}, {"gpus", sizes}}));
  }
  if (!uid.empty()) (void)server_->remove(api::kTrainingJob, {"default", job.plan.shape.name});
  if (job.deleted) return;
  job.deleted = true;
  again(1s, job);
}

// ---- Sizes

// To any that the job can be given when all is mended, and has micro-batches for.
void WholeCluster::resize(const Fault& fault, Job& job) {
  int most = 0;
  for (const NodePlan& node : scenario_.nodes)
    if (node.gpu_type == "fast") most += node.gpus;
  std::string of = job.plan.queue;
  for (const QueuePlan& queue : scenario_.queues) {  // a parent comes behind its parts
    if (queue.name != of) continue;
    if (queue.limit > 0) most = std::min(most, queue.limit);
    of = queue.parent;
  }
  const int unit = job.plan.per_pod;
  const int of_step = static_cast<int>(job.plan.shape.micro_batches) / unit * unit;
  const int sizes = std::min({most, kSizeMost, of_step}) / unit;
  const int least = unit * (1 + static_cast<int>(fault.pick) % sizes);
  const int before = std::min(job.plan.min, most / unit * unit);
  job.plan.max =
      std::min(std::max(least + unit * static_cast<int>(fault.more % 4), before), of_step);
  job.plan.min = least;
  job.plan.can_finish = true;
  story_.say("FAULT {} is resized to {} to {} GPUs", job.plan.shape.name, job.plan.min,
             job.plan.max);
  patch_job(job, Value::object(
                     {{"gpus", Value::object({{"min", job.plan.min}, {"max", job.plan.max}})}}));
}

// ---- The policy

// By times so short that what it does for hours happens within the story.
void WholeCluster::change_policy(const Fault& fault) {
  const std::vector<sched::Descriptor> all = sched::all_policies();
  const sched::Descriptor& chosen = all[fault.pick % all.size()];
  const bool by_weight = fault.more / 10 % 2 == 1;
  story_.say("FAULT policy {} is put in force{}", chosen.name, by_weight ? ", with weights" : "");
  Value parameters = Value::object({{"queueWeights", by_weight ? 1 : 0}});
  double number = 5 + static_cast<double>(fault.more % 10);
  for (const sched::Parameter& parameter : chosen.parameters) {
    parameters.set(parameter.name, std::clamp(number, parameter.least, parameter.most));
    number *= 4;
  }
  (void)server_->remove(api::kSchedulingPolicy, {"", "default"});
  const auto put = server_->create(
      api::kSchedulingPolicy, "",
      Value::object({{"apiVersion", std::string(api::kApiVersion)},
                     {"kind", "SchedulingPolicy"},
                     {"metadata", Value::object({{"name", "default"}})},
                     {"spec", Value::object({{"policy", chosen.name},
                                             {"parameters", std::move(parameters)},
                                             {"roundSeconds", 1 + static_cast<int>(fault.more % 5)},
                                             {"gangStartSeconds", 20},
                                             {"missingMechanism", "Degrade"}})}}));
  CHECK(put.ok());
}

// ---- Versions

// An upgrade, and back: operators end in order, one after the other, and begin as the other
// version; pods that start meanwhile are of it, too.
void WholeCluster::change_version(const Fault& fault) {
  story_.say("FAULT the next version is installed, for {:.1f} s", seconds(fault.spell));
  is_next_version_ = true;
  restart_operators();
  later(fault.spell, [this] {
    if (over_) return;
    story_.say("this version is installed again");
    is_next_version_ = false;
    restart_operators();
  });
}

void WholeCluster::restart_operators() {
  trouble_everywhere();
  Duration wait{0};
  for (auto& replica : replicas_) {
    later(wait, [this, &replica] {
      links_.touch(replica->host());
      if (!replica->is_frozen()) replica->stop();
    });
    wait += kRollout;
  }
}

}  // namespace rubato::sim
