// Where workers are when a fault strikes: what is counted, and faults that wait for a worker to
// reach a place of its step.
#include "tests/sim/sim_host.h"
#include "tests/sim/whole_cluster.h"

namespace rubato::sim {

// ---- What is counted

void WholeCluster::note_met(FaultKind kind, const Container& container) {
  has_noted_ = true;
  if (container.exit_status) return;
  for (const Phase phase : container.phases)
    ++coverage_.met.at(static_cast<std::size_t>(kind)).at(static_cast<std::size_t>(phase));
}

void WholeCluster::note_met(FaultKind kind, ModelNode& node) {
  for (const auto& [uid, container] : node.containers()) note_met(kind, *container);
}

void WholeCluster::note_met(FaultKind kind, const Job& job) {
  for (const auto& node : nodes_)
    for (const auto& [uid, container] : node->containers())
      if (container->job_uid == job.uid) note_met(kind, *container);
}

void WholeCluster::note_met_by_all(FaultKind kind) {
  for (const auto& node : nodes_) note_met(kind, *node);
}

// ---- Faults at a place

// On the worker's thread. What is done to it may end this very thread, so it is done from outside,
// at the same time, while the thread stays where it is (SimHost).
bool WholeCluster::reached(Container& container, std::uint32_t slot, Phase phase) {
  container.phases[slot] = phase;
  ++coverage_.reached[static_cast<std::size_t>(phase)];
  for (auto armed = armed_.begin(); armed != armed_.end(); ++armed) {
    if (armed->fault.phase != phase) continue;
    if (armed->pass > 0) {
      --armed->pass;
      continue;
    }
    later(0s,
          [this, fault = armed->fault, uid = container.uid, slot] { strike(fault, uid, slot); });
    armed_.erase(armed);
    return true;
  }
  return false;
}

void WholeCluster::strike(const Fault& fault, const std::string& pod_uid, std::uint32_t slot) {
  ModelNode* node = node_of_pod(pod_uid);
  if (over_ || node == nullptr) return;
  Container& container = *node->find(pod_uid);
  if (container.exit_status) return;
  story_.say("{} is at {}", container.key, name_of(*fault.phase));
  trouble_everywhere();
  if (fault.kind == FaultKind::kPowerCut) {
    note_met(fault.kind, *node);
    return cut_power(fault, *node);
  }
  note_met(fault.kind, container);
  if (fault.kind == FaultKind::kPodCrash) return crash_pod(fault, container);
  if (fault.kind == FaultKind::kWorkerKilled) return kill_worker_of(container, slot);
  CHECK(fault.kind == FaultKind::kWorkerHangs);
  hang_worker_of(fault, container, slot);
}

void WholeCluster::kill_worker_of(Container& container, std::uint32_t slot) {
  if (container.workers == nullptr) return;
  story_.say("FAULT worker of pod {} is killed", container.key);
  container.workers->kill(slot);
}

void WholeCluster::hang_worker_of(const Fault& fault, Container& container, std::uint32_t slot) {
  if (container.workers == nullptr) return;
  const bool altogether = fault.more % 2 == 0;
  story_.say("FAULT {} of pod {} hangs", altogether ? "worker" : "step thread", container.key);
  container.workers->hang(slot, altogether);
}

}  // namespace rubato::sim
