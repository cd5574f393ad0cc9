#include "operator/control/placement_gate.h"

#include "common/planted.h"

#include <algorithm>

namespace rubato::control {

void PlacementGate::open(const std::map<std::string, std::int64_t>& stands) {
  std::lock_guard lock(mutex_);
  for (const auto& [uid, epoch] : stands) {
    std::optional<std::int64_t>& newest = jobs_[uid].epoch;
    newest = std::max(newest, std::optional(epoch));
  }
  open_ = true;
}

PlacementGate::Placing::Placing(PlacementGate& gate, const std::string& job_uid, std::int64_t epoch)
    : gate_(nullptr), job_uid_(job_uid) {
  std::lock_guard lock(gate.mutex_);
  const auto job = gate.jobs_.find(job_uid);
  if (!gate.open_ || job == gate.jobs_.end()) return;
  if (job->second.deciding || !job->second.epoch) return;
  if (*job->second.epoch > epoch && !planted(Bug::kOldAllocation)) return;
  ++job->second.placing;
  gate_ = &gate;
}

PlacementGate::Placing::~Placing() {
  if (gate_ == nullptr) return;
  std::lock_guard lock(gate_->mutex_);
  --gate_->jobs_[job_uid_].placing;
}

void PlacementGate::binds(const kube::Pod& pod, const std::string& node, MonoTime now) {
  auto bound = std::make_shared<kube::Pod>(pod);
  bound->node_name = node;
  std::lock_guard lock(mutex_);
  unseen_.insert_or_assign(pod.meta.uid, Binding{std::move(bound), now});
}

void PlacementGate::not_bound(const std::string& pod_uid) {
  std::lock_guard lock(mutex_);
  unseen_.erase(pod_uid);
}

void PlacementGate::saw(const kube::Change<kube::Pod>& change) {
  std::lock_guard lock(mutex_);
  if (change.before && (!change.after || change.after->meta.uid != change.before->meta.uid))
    unseen_.erase(change.before->meta.uid);
  if (change.after && !change.after->node_name.empty()) unseen_.erase(change.after->meta.uid);
}

void PlacementGate::note_made(const std::string& job_uid, const std::string& pod_name) {
  std::lock_guard lock(mutex_);
  jobs_[job_uid].made.insert(pod_name);
}

bool PlacementGate::was_made(const std::string& job_uid, const std::string& pod_name) const {
  std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job_uid);
  return found != jobs_.end() && found->second.made.contains(pod_name);
}

bool PlacementGate::begin_decision(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  Job& job = jobs_[job_uid];
  if (job.deciding || job.placing > 0) return false;
  job.deciding = true;
  return true;
}

void PlacementGate::end_decision(const std::string& job_uid, std::optional<std::int64_t> epoch) {
  std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job_uid);
  if (found == jobs_.end()) return;
  found->second.deciding = false;
  found->second.epoch = std::max(found->second.epoch, epoch);
}

std::vector<std::shared_ptr<const kube::Pod>> PlacementGate::unseen() const {
  if (planted(Bug::kForgetBindings)) return {};
  return unseen_since_before(MonoTime::max());
}

std::vector<std::shared_ptr<const kube::Pod>> PlacementGate::unseen_since_before(
    MonoTime then) const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const kube::Pod>> pods;
  for (const auto& [uid, binding] : unseen_)
    if (binding.since < then) pods.push_back(binding.pod);
  return pods;
}

void PlacementGate::forget_job(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job_uid);
  if (found != jobs_.end() && found->second.placing == 0) jobs_.erase(found);
}

}  // namespace rubato::control
