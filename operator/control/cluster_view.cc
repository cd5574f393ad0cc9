#include "operator/control/cluster_view.h"

#include "common/planted.h"
#include "operator/api/resources.h"
#include "operator/control/avoided_nodes.h"
#include "operator/control/worker_pod.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

namespace {

sched::Resources resources_of(const kube::Amounts& amounts, const Config& config) {
  return {kube::amount_of(amounts, config.gpu_resource), kube::amount_of(amounts, "cpu"),
          kube::amount_of(amounts, "memory")};
}

// Pods by key, and the free resources of each node.
class Capture {
 public:
  Capture(const World& world, const Config& config) : world_(world), config_(config) {
    for (const auto& pod : world.pods) pods_[pod->meta.key()] = pod.get();
    for (const auto& lease : world.leases) leases_[lease->meta.name] = lease.get();
    for (const auto& priority : world.priorities) {
      priorities_[priority->meta.name] = priority->value;
      if (priority->global_default) default_priority_ = priority->value;
    }
  }

  sched::ClusterState run() {
    for (const auto& node : world_.nodes) add_node(*node);
    subtract_pods();
    for (const auto& job : world_.jobs) {
      if (is_schedulable(*job) && !has_ended(*job)) add_job(*job);
    }
    add_queues();
    sched::ClusterState state;
    for (auto& [name, node] : nodes_) state.nodes.push_back(std::move(node));
    state.jobs = std::move(jobs_);
    state.queues = std::move(queues_);
    return state;
  }

 private:
  // Its workers are done, though the status may not say so yet.
  bool has_ended(const JobObject& job) const {
    const auto view = world_.view_of ? world_.view_of(job.job.meta.uid) : std::nullopt;
    return view && (view->phase == coordinator::Phase::kFinished ||
                    view->phase == coordinator::Phase::kFailed);
  }

  void add_node(const kube::Node& node) {
    sched::Node seen;
    seen.id = node.meta.name;
    seen.gpu_type =
        std::string(kube::find(node.meta.labels, config_.gpu_type_label).value_or("unknown"));
    seen.gpus_total = kube::amount_of(node.allocatable, config_.gpu_resource);
    seen.free = resources_of(node.allocatable, config_);
    const auto lease = leases_.find(node.meta.name);
    seen.why_not = why_unschedulable(node, lease == leases_.end() ? nullptr : lease->second,
                                     world_.suspects, world_.now, config_);
    seen.schedulable = seen.why_not.empty();
    nodes_.emplace(seen.id, std::move(seen));
  }

  void subtract_pods() {
    for (const auto& pod : world_.pods) {
      if (pod->node_name.empty() || pod->is_finished()) continue;
      if (planted(Bug::kGiveOnEarly) && pod->meta.deleting) continue;
      const auto node = nodes_.find(pod->node_name);
      if (node != nodes_.end()) node->second.free -= resources_of(pod->requests, config_);
    }
    for (auto& [name, node] : nodes_) {
      // More may be promised than a node has left after it shrank; that is nobody's to take.
      node.free.gpus = std::max<sched::Gpus>(node.free.gpus, 0);
      node.free.cpu = std::max<sched::MilliCpu>(node.free.cpu, 0);
      node.free.memory = std::max<sched::Bytes>(node.free.memory, 0);
    }
  }

  void add_job(const JobObject& object) {
    const api::TrainingJob& job = object.job;
    sched::Job seen;
    seen.id = job.meta.uid;
    seen.name = job.meta.ns + "/" + job.meta.name;
    seen.queue = job.spec.queue;
    seen.priority = priority_of(job.spec.priority_class_name);
    seen.weight = job.spec.objective.weight;
    seen.queued_at = std::chrono::duration<double>(
                         job.meta.creation_time.value_or(world_.now).time_since_epoch())
                         .count();
    seen.min = job.spec.gpus.min;
    seen.max = job.spec.gpus.max;
    seen.shape = job.spec.gpus.shape == api::GpuShape::kPowersOfTwo ? sched::Shape::kPowersOfTwo
                                                                    : sched::Shape::kAny;
    seen.allow = job.spec.accelerators.allow;
    seen.mix = job.spec.accelerators.mix;
    seen.refused = refusal(job);
    describe_pod(job, seen);
    seen.avoid = avoided_at(job.status.avoided_nodes, world_.now);
    seen.cooling = world_.grown_lately.contains(job.meta.uid);
    add_held(job, seen);
    if (job.status.performance) {
      for (const auto& point : job.status.performance->by_type) {
        seen.measured.push_back({point.gpu_type, point.gpus, point.tokens_per_second});
      }
    }
    jobs_.push_back(std::move(seen));
  }

  std::string refusal(const api::TrainingJob& job) const {
    if (std::string problem = template_problem(job); !problem.empty()) return problem;
    const auto held = world_.held_back.find(job.meta.uid);
    const bool waits = held != world_.held_back.end() && held->second.until > world_.now;
    return waits ? to_text(held->second) : "";
  }

  // What one pod takes, and which nodes its selectors, affinity and tolerations admit.
  void describe_pod(const api::TrainingJob& job, sched::Job& seen) const {
    seen.per_pod.gpus = job.spec.gpus.per_pod;
    api::AllocatedPod sample;
    sample.name = api::pod_name(job.meta.name, 0);
    const auto pod = kube::Pod::decode(worker_pod(job, sample, config_));
    if (!pod.ok()) {
      seen.refused = "spec.template: " + pod.error().what();
      return;
    }
    seen.per_pod = resources_of(pod->requests, config_);
    std::set<sched::NodeId> eligible;
    for (const auto& node : world_.nodes) {
      if (admits(*pod, *node)) eligible.insert(node->meta.name);
    }
    seen.eligible = std::move(eligible);
  }

  static bool admits(const kube::Pod& pod, const kube::Node& node) {
    const auto label = [&](std::string_view key) { return kube::find(node.meta.labels, key); };
    for (const auto& [key, value] : pod.node_selector) {
      if (label(key) != std::optional<std::string_view>(value)) return false;
    }
    for (const kube::Taint& taint : node.taints) {
      if (taint.effect == "PreferNoSchedule") continue;
      // Kubernetes marks unready nodes by taints; readiness is judged in why_unschedulable().
      if (taint.key.starts_with("node.kubernetes.io/")) continue;
      if (!kube::tolerates(pod.tolerations, taint)) return false;
    }
    if (pod.affinity_terms.empty()) return true;
    for (std::size_t i = 0; i < pod.affinity_terms.size(); ++i) {
      const bool named = pod.affinity_nodes[i].empty() || pod.affinity_nodes[i] == node.meta.name;
      if (named && pod.affinity_terms[i].matches(label)) return true;
    }
    return false;
  }

  // Allocated pods, then pods that are still there though the allocation has dropped them.
  void add_held(const api::TrainingJob& job, sched::Job& seen) {
    std::set<std::string> allocated;
    sched::Gpus promised = 0;
    if (job.status.allocation) {
      for (const auto& pod : job.status.allocation->pods) {
        allocated.insert(pod.name);
        const kube::Pod* object = find_pod(job, pod.name);
        const bool lost = is_lost(job, pod, object, world_);
        seen.held.push_back({pod.ordinal, pod.node, pod.gpu_type, pod.gpus, false, lost,
                             is_unstarted(job, pod, object, world_),
                             is_refused(job, pod, object, world_)});
        promised += pod.gpus;
        // A pod that was lost is replaced in this round, unless the job waits.
        const bool open = object == nullptr || object->node_name.empty();
        if (open && (!lost || !seen.refused.empty())) take_promise(pod, seen);
      }
      seen.started = !job.status.allocation->pods.empty();
    }
    for (const auto& pod : world_.pods) {
      if (!pod->meta.owner || pod->meta.owner->uid != job.meta.uid || pod->is_finished()) continue;
      if (allocated.contains(pod->meta.name) || pod->node_name.empty()) continue;
      if (is_gone_for_us(*pod)) continue;
      seen.held.push_back({-1, pod->node_name, "", seen.per_pod.gpus, true, false});
    }
    seen.settled = is_settled(job, promised);
  }

  // A terminating pod on a node that is silent or gone will not come free soon.
  bool is_gone_for_us(const kube::Pod& pod) const {
    const auto node = nodes_.find(pod.node_name);
    return node == nodes_.end() || !node->second.schedulable;
  }

  void take_promise(const api::AllocatedPod& pod, const sched::Job& job) {
    const auto node = nodes_.find(pod.node);
    if (node == nodes_.end() || planted(Bug::kForgetPromise)) return;
    node->second.free -= job.per_pod;
    node->second.free.gpus = std::max<sched::Gpus>(node->second.free.gpus, 0);
  }

  // No rescale under way: every allocated GPU trains, and nothing else does.
  bool is_settled(const api::TrainingJob& job, sched::Gpus promised) const {
    if (promised == 0) return true;
    const auto view = world_.view_of ? world_.view_of(job.meta.uid) : std::nullopt;
    return view && view->phase == coordinator::Phase::kTraining &&
           static_cast<sched::Gpus>(view->members.size()) == promised;
  }

  void add_queues() {
    // Without any TrainingQueue the cluster behaves as one open queue named "default".
    queues_["default"] = {.name = "default"};
    for (const auto& object : world_.queues) {
      sched::Queue queue;
      queue.name = object->meta.name;
      queue.weight = object->queue.spec.weight;
      queue.borrowing = object->queue.spec.borrowing;
      for (const auto& quota : object->queue.spec.quotas) {
        sched::Quota& of_type = queue.quotas[quota.gpu_type];
        of_type.guaranteed = quota.guaranteed;
        if (quota.limit) of_type.limit = *quota.limit;
      }
      queues_[queue.name] = std::move(queue);
    }
    for (const auto& job : world_.jobs) {
      if (!is_schedulable(*job) || has_ended(*job)) add_leaver(job->job);
    }
  }

  // A job that is no longer scheduled holds what it was given until it gives it back, what is
  // promised to pods that are not there yet included.
  void add_leaver(const api::TrainingJob& job) {
    if (!job.status.allocation) return;
    const auto queue = queues_.find(job.spec.queue);
    for (const auto& pod : job.status.allocation->pods) {
      const kube::Pod* object = find_pod(job, pod.name);
      if (object != nullptr && is_lost(job, pod, object, world_)) continue;
      if (queue != queues_.end()) queue->second.held_by_leavers[pod.gpu_type] += pod.gpus;
      const auto node = nodes_.find(pod.node);
      if (node == nodes_.end() || (object != nullptr && !object->node_name.empty())) continue;
      node->second.free.gpus = std::max<sched::Gpus>(node->second.free.gpus - pod.gpus, 0);
    }
  }

  std::int64_t priority_of(const std::string& name) const {
    const auto found = priorities_.find(name);
    return found == priorities_.end() ? default_priority_ : found->second;
  }

  // The job's own: somebody else's under the name says nothing about the one that is to come.
  const kube::Pod* find_pod(const api::TrainingJob& job, const std::string& name) const {
    const auto found = pods_.find({job.meta.ns, name});
    if (found == pods_.end()) return nullptr;
    const auto& owner = found->second->meta.owner;
    return owner && owner->uid == job.meta.uid ? found->second : nullptr;
  }

  const World& world_;
  const Config& config_;
  std::map<kube::Key, const kube::Pod*> pods_;
  std::map<std::string, const NodeLease*> leases_;
  std::map<std::string, std::int64_t> priorities_;
  std::int64_t default_priority_ = 0;
  std::map<std::string, sched::Node> nodes_;
  std::vector<sched::Job> jobs_;
  std::map<std::string, sched::Queue> queues_;
};

}  // namespace

sched::ClusterState capture(const World& world, const Config& config) {
  return Capture(world, config).run();
}

namespace {
// As far as the job controller has said: it may be behind a spec that was just changed back.
bool is_or_gets_suspended(const api::TrainingJob& job) {
  const api::Condition* found =
      api::find_condition(job.status.conditions, api::condition::kSuspended);
  return found != nullptr && (found->status == api::ConditionStatus::kTrue ||
                              found->reason == api::reason::kSuspending);
}
}  // namespace

bool is_schedulable(const JobObject& object) {
  const api::TrainingJob& job = object.job;
  return !job.meta.is_deleting() && job.meta.has_finalizer(api::kFinalizer) && !job.spec.suspend &&
         !api::is_finished(job.status.conditions) && !is_or_gets_suspended(job) &&
         job.status.observed_generation.has_value();
}

bool is_lost(const api::TrainingJob& job, const api::AllocatedPod& allocated, const kube::Pod* pod,
             const World& world) {
  const bool node_exists = std::any_of(world.nodes.begin(), world.nodes.end(), [&](const auto& n) {
    return n->meta.name == allocated.node;
  });
  if (!node_exists) return true;
  if (is_unstarted(job, allocated, pod, world) || is_refused(job, allocated, pod, world))
    return true;
  // Absent: not created yet, or deleted since.
  if (pod == nullptr) return world.lost_pods.contains(job.meta.ns + "/" + allocated.name);
  return pod->is_finished() || pod->meta.deleting.has_value() ||
         world.lost_pods.contains(pod->meta.uid);
}

bool is_unstarted(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                  const kube::Pod* pod, const World& world) {
  return is_listed(job.status.avoided_nodes, allocated.node) &&
         world.given_up.contains(start_key(job.meta.ns, allocated, pod));
}

bool is_refused(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                const kube::Pod* pod, const World& world) {
  return pod != nullptr && is_listed(job.status.avoided_nodes, allocated.node) &&
         world.given_up.contains(refusal_key(pod->meta.uid));
}

std::string refusal_key(const std::string& pod_uid) { return pod_uid + " refused"; }

std::string start_key(const std::string& ns, const api::AllocatedPod& allocated,
                      const kube::Pod* pod) {
  if (pod == nullptr) return ns + "/" + allocated.name + " made";
  switch (pod->phase) {
    case kube::PodPhase::kPending:
      return pod->meta.uid + " started";
    case kube::PodPhase::kRunning:
      return pod->meta.uid + " heard";
    case kube::PodPhase::kSucceeded:
    case kube::PodPhase::kFailed:
    case kube::PodPhase::kUnknown:
      break;
  }
  return "";
}

std::string why_unschedulable(const kube::Node& node, const NodeLease* lease,
                              const std::map<std::string, WallTime>& suspects, WallTime now,
                              const Config& config) {
  if (node.meta.deleting) return "being deleted";
  if (node.unschedulable) return "cordoned";
  return why_silent(node, lease, suspects, now, config);
}

std::string why_silent(const kube::Node& node, const NodeLease* lease,
                       const std::map<std::string, WallTime>& suspects, WallTime now,
                       const Config& config) {
  if (node.ready != kube::Node::Ready::kTrue) return "not ready";
  if (lease != nullptr) {
    const Duration limit = config.node_lease_limit > 0s ? config.node_lease_limit : lease->duration;
    if (now - lease->renewed > limit) return "its Lease is not renewed";
  }
  const auto suspect = suspects.find(node.meta.name);
  if (suspect != suspects.end() && (lease == nullptr || lease->renewed <= suspect->second)) {
    return "a worker fell silent on it and its Lease was not renewed since";
  }
  return "";
}

}  // namespace rubato::control
