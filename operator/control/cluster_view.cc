#include "operator/control/cluster_view.h"

#include "common/planted.h"
#include "common/words.h"
#include "kube/objects/decode.h"
#include "operator/api/resources.h"
#include "operator/control/avoided_nodes.h"
#include "operator/control/captured_queues.h"
#include "operator/control/claim_users.h"
#include "operator/control/job_history.h"
#include "operator/control/leaving_nodes.h"
#include "operator/control/node_fit.h"
#include "operator/control/worker_pod.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace rubato::control {

namespace {

constexpr std::string_view kPods = "pods";  // of which each pod is one
const std::vector<const kube::Pod*> kNoPods;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 4;
// After the end of its grace a pod may still be there: its node is slow, or the clock is late.
constexpr auto kOverdueAfter = 5min;

// Defaults of the namespace, and what a RuntimeClass or a webhook adds: more requests, labels that
// its node must have, taints that it tolerates.
void add_what_was_added(const kube::Pod& admitted, kube::Pod& made) {
  kube::raise_amounts(made.requests, admitted.requests);
  for (const auto& label : admitted.node_selector) {
    const auto at = std::ranges::lower_bound(made.node_selector, label);
    if (!kube::find(made.node_selector, label.first)) made.node_selector.insert(at, label);
  }
  for (const kube::Toleration& toleration : admitted.tolerations)
    if (std::ranges::find(made.tolerations, toleration) == made.tolerations.end())
      made.tolerations.push_back(toleration);
}

// Pods by key, and the free resources of each node.
class Capture {
 public:
  Capture(const World& world, const Config& config)
      : world_(world),
        config_(config),
        storage_(
            storage_of(world.claims, world.volumes, world.storage_classes, world.claims_denied)),
        captured_queues_(world.queues),
        speeds_(world.jobs, world.profiles) {
    for (const auto& pod : world.pods) {
      pods_[pod->meta.key()] = pod.get();
      if (pod->meta.owner) pods_of_[pod->meta.owner->uid].push_back(pod.get());
    }
    for (const auto& node : world.nodes) {
      node_names_.insert(node->meta.name);
      for (const kube::Amount& amount : node->allocatable)
        if (amount.value > 0) offered_.insert(amount.resource);
    }
  }

  sched::ClusterState run() {
    std::vector<const JobObject*> jobs;
    for (const auto& job : world_.jobs) {
      if (is_schedulable(*job) && !has_ended(world_, job->job.meta.uid)) jobs.push_back(job.get());
    }
    for (const JobObject* job : jobs) describe(job->job);
    for (const auto& node : world_.nodes) whole_.push_back(resources_of(node->allocatable));
    for (const auto& node : world_.nodes) add_node(*node);
    subtract_pods();
    note_claim_users();
    for (const JobObject* job : jobs) add_job(*job);
    add_queues();
    sched::ClusterState state;
    state.now_ms = in_ms(world_.wall);
    for (const TopologyLevel& level : config_.topology) state.levels.push_back(level.name);
    for (auto& [name, node] : nodes_) state.nodes.push_back(std::move(node));
    state.jobs = std::move(jobs_);
    state.queues = std::move(queues_);
    return state;
  }

 private:
  void add_node(const kube::Node& node) {
    sched::Node seen;
    seen.id = node.meta.name;
    seen.gpu_type = gpu_type_of(node, config_.gpu_type_label);
    seen.domains = domains_of(node, config_.topology);
    seen.gpus_total = kube::amount_of(node.allocatable, config_.gpu_resource);
    seen.free = resources_of(node.allocatable);
    const bool counts_pods =
        std::any_of(node.allocatable.begin(), node.allocatable.end(),
                    [](const kube::Amount& amount) { return amount.resource == kPods; });
    if (!counts_pods) seen.free.others[0] = kNoLimit;
    const auto renewal = world_.renewals.find(node.meta.name);
    seen.why_not = why_leaving(node, world_.wall, config_);
    seen.leaving = !seen.why_not.empty();
    if (!seen.leaving)
      seen.why_not =
          why_unschedulable(node, renewal == world_.renewals.end() ? nullptr : &renewal->second,
                            world_.suspects, world_.now, config_);
    seen.schedulable = seen.why_not.empty();
    nodes_.emplace(seen.id, std::move(seen));
  }

  void subtract_pods() {
    for (const auto& pod : world_.pods) {
      if (pod->node_name.empty() || pod->is_finished()) continue;
      if (planted(Bug::kGiveOnEarly) && pod->meta.deleting) continue;
      const auto node = nodes_.find(pod->node_name);
      if (node != nodes_.end()) node->second.free -= taken_by(*pod);
    }
    // More may be promised than a node has left after it shrank; that is nobody's to take.
    for (auto& [name, node] : nodes_) node.free.raise_to_zero();
  }

  // Of the kinds that a node counts and a job here asks for.
  sched::Resources resources_of(const kube::Amounts& amounts) const {
    sched::Resources all{kube::amount_of(amounts, config_.gpu_resource),
                         kube::amount_of(amounts, "cpu"), kube::amount_of(amounts, "memory")};
    for (std::size_t i = 0; i < others_.size(); ++i)
      all.others[i] = kube::amount_of(amounts, others_[i]);
    return all;
  }

  sched::Resources taken_by(const kube::Pod& pod) const {
    sched::Resources taken = resources_of(pod.requests);
    taken.others[0] = 1;
    return taken;
  }

  // The pod that the job's template makes, and what it asks for beyond GPUs, cores and memory. What
  // no node has is not counted, so that nobody uses up the kinds that can be.
  void describe(const api::TrainingJob& job) {
    auto& made =
        made_.emplace(job.meta.uid, kube::Pod::decode(sample_pod(job, config_))).first->second;
    if (!made.ok()) return;
    // Pods of it may be more than their template: the trial of the first has shown it, or they do.
    if (const auto tried = world_.admitted_of ? world_.admitted_of(job.meta.uid) : nullptr)
      add_what_was_added(*tried, *made);
    if (const auto pods = pods_of_.find(job.meta.uid); pods != pods_of_.end())
      for (const kube::Pod* pod : pods->second) add_what_was_added(*pod, *made);
    for (const kube::Amount& amount : made->requests) {
      const bool known =
          amount.resource == config_.gpu_resource || amount.resource == "cpu" ||
          amount.resource == "memory" ||
          std::find(others_.begin(), others_.end(), amount.resource) != others_.end();
      if (known || amount.value <= 0) continue;
      if (!offered_.contains(amount.resource)) {
        made = Error(Code::kInvalid, "asks for " + amount.resource +
                                         ", which no node offers; remove it, or add a node that "
                                         "has it")
                   .set_reason(std::string(api::reason::kNeverFits));
        return;
      }
      if (others_.size() == sched::Resources::kOthers) {
        made = Error(Code::kInvalid,
                     "asks for " + amount.resource +
                         ", and jobs here ask for more kinds of resources than can be counted; "
                         "remove it, or wait until other jobs have ended");
        return;
      }
      others_.push_back(amount.resource);
    }
  }

  // Pods, and promises of pods, of which each counts where it is, or is to be.
  void note_claim_users() {
    for (const auto& pod : world_.pods) {
      if (pod->node_name.empty() || pod->is_finished()) continue;
      for (const std::string& claim : pod->claims)
        users_.add({pod->meta.ns, claim}, {pod->meta.name, pod->node_name});
    }
    for (const auto& job : world_.jobs) {
      const auto made = made_.find(job->job.meta.uid);
      if (made == made_.end() || !made->second.ok() || !job->job.status.allocation) continue;
      for (const auto& allocated : job->job.status.allocation->pods) {
        const kube::Pod* pod = find_pod(job->job, allocated.name);
        if ((pod != nullptr && !pod->node_name.empty()) || is_lost_here(job->job, allocated, pod))
          continue;
        for (const std::string& claim : made->second->claims)
          users_.add({job->job.meta.ns, claim}, {allocated.name, allocated.node});
      }
    }
  }

  // Where its volumes can be used, or why it has to wait for them.
  void describe_volumes(const api::TrainingJob& job, const kube::Pod& pod, sched::Job& seen,
                        std::set<sched::NodeId>& eligible) const {
    if (pod.claims.empty() && pod.ephemeral.empty()) return;
    const std::int64_t per_pod = std::max<std::int64_t>(job.spec.gpus.per_pod, 1);
    VolumeNeeds needs = volume_needs(pod, job.spec.gpus.max / per_pod, storage_);
    for (const auto& node : world_.nodes)
      if (!needs.admits(*node)) eligible.erase(node->meta.name);
    for (const kube::Key& claim : needs.one_node) users_.keep_to_users(claim, eligible);
    for (const kube::Key& claim : needs.one_pod)
      if (needs.problem.reason.empty()) needs.problem = used_by_others(job, claim);
    seen.one_node = !needs.one_node.empty();
    seen.narrowed = needs.why_narrow();
    if (!seen.refused.empty() || needs.problem.reason.empty()) return;
    seen.refused = needs.problem.message;
    seen.refused_as = needs.problem.reason;
  }

  VolumeProblem used_by_others(const api::TrainingJob& job, const kube::Key& claim) const {
    return users_.problem_of(claim, [&](const std::string& pod) { return is_its_own(job, pod); });
  }

  // Of its allocation, and not lost.
  bool is_its_own(const api::TrainingJob& job, const std::string& name) const {
    if (!job.status.allocation) return false;
    const auto& pods = job.status.allocation->pods;
    const auto found = std::find_if(pods.begin(), pods.end(),
                                    [&](const auto& allocated) { return allocated.name == name; });
    return found != pods.end() && !is_lost_here(job, *found, find_pod(job, name));
  }

  void add_job(const JobObject& object) {
    const api::TrainingJob& job = object.job;
    sched::Job seen;
    seen.id = job.meta.uid;
    seen.name = job.meta.ns + "/" + job.meta.name;
    seen.queue = captured_queues_.queue_of(job);
    const api::JobPriority priority = priority_in_force(job);
    seen.priority = priority.value;
    seen.may_preempt = priority.preempts;
    seen.preemptible = job.spec.preemptible;
    seen.min_run_ms = job.spec.min_run_seconds * 1000;
    seen.not_admitted = captured_queues_.why_not_admitted(job);
    seen.weight = job.spec.objective.weight;
    if (const auto& deadline = job.spec.objective.deadline)
      seen.deadline_ms = std::max<sched::TimeMs>(in_ms(*deadline), 0);
    seen.queued_at = std::chrono::duration<double>(
                         job.meta.creation_time.value_or(world_.wall).time_since_epoch())
                         .count();
    seen.min = job.spec.gpus.min;
    seen.max = job.spec.gpus.max;
    seen.shape = job.spec.gpus.shape == api::GpuShape::kPowersOfTwo ? sched::Shape::kPowersOfTwo
                                                                    : sched::Shape::kAny;
    seen.allow = job.spec.accelerators.allow;
    seen.mix = job.spec.accelerators.mix;
    seen.refused = refusal(object);
    seen.spare_only = why_spare_only(job);
    describe_pod(job, seen);
    describe_topology(job, config_.topology, seen);
    seen.avoid = avoided_at(job.status.avoided_nodes, world_.wall, world_.gang_start);
    seen.cooling = world_.grown_lately.contains(job.meta.uid);
    add_held(job, seen);
    limit_growth(seen);
    seen.measured = speeds_.of(object);
    add_history(job, seen);
    jobs_.push_back(std::move(seen));
  }

  std::string refusal(const JobObject& object) const {
    if (!object.problem.empty()) return object.problem;
    const auto held = world_.held_back.find(object.job.meta.uid);
    const bool waits = held != world_.held_back.end() && held->second.until > world_.now;
    return waits ? to_text(held->second, world_.now, world_.wall) : "";
  }

  std::string why_spare_only(const api::TrainingJob& job) const {
    const auto found = world_.failed_starts.find(job.meta.uid);
    if (found == world_.failed_starts.end()) return "";
    const FailedStarts& failed = found->second;
    if (failed.generation != job.meta.generation || failed.spare_only_until <= world_.now)
      return "";
    return fmt::format(
        "nobody makes room for it before {}, for its pods did not start in time{}",
        to_rfc3339(wall_of(failed.spare_only_until, world_.now, world_.wall)),
        failed.in_a_row == 1 ? "" : fmt::format(", {} times in a row", failed.in_a_row));
  }

  // What one pod takes, and which nodes its selectors, affinity and tolerations admit.
  void describe_pod(const api::TrainingJob& job, sched::Job& seen) const {
    seen.per_pod.gpus = std::max<sched::Gpus>(job.spec.gpus.per_pod, 1);  // or it is refused
    const Result<kube::Pod>& pod = made_.at(job.meta.uid);
    if (!pod.ok()) {
      seen.refused = "spec.template: " + pod.error().what();
      seen.refused_as = pod.error().reason();
      return;
    }
    seen.per_pod = taken_by(*pod);
    seen.per_pod.gpus = std::max<sched::Gpus>(seen.per_pod.gpus, 1);
    std::set<sched::NodeId> eligible;
    std::map<std::string_view, std::int64_t> too_small;  // nodes, by what they have too little of
    for (std::size_t i = 0; i < world_.nodes.size(); ++i) {
      if (!admits(*pod, *world_.nodes[i])) continue;
      const std::string_view lacking = lacks(whole_[i], seen.per_pod);
      if (lacking.empty())
        eligible.insert(world_.nodes[i]->meta.name);
      else
        ++too_small[lacking];
    }
    describe_volumes(job, *pod, seen, eligible);
    for (const auto& [resource, nodes] : too_small)
      seen.narrowed += fmt::format("{}a pod of it asks for more {} than {} {}",
                                   seen.narrowed.empty() ? "" : "; ", resource,
                                   counted(nodes, "node"), agreeing(nodes, "has", "have"));
    seen.eligible = std::move(eligible);
  }

  // What a pod asks more of than a node has, whoever is on it; "": nothing. GPUs and the number of
  // pods are counted elsewhere.
  std::string_view lacks(const sched::Resources& node, const sched::Resources& pod) const {
    if (pod.cpu > node.cpu) return "cpu";
    if (pod.memory > node.memory) return "memory";
    for (std::size_t i = 1; i < others_.size(); ++i)
      if (pod.others[i] > node.others[i]) return others_[i];
    return "";
  }

  // Allocated pods, then pods that are still there though the allocation has dropped them.
  void add_held(const api::TrainingJob& job, sched::Job& seen) {
    std::set<std::string> allocated;
    sched::Gpus promised = 0;
    if (job.status.allocation) {
      for (const auto& pod : job.status.allocation->pods) {
        allocated.insert(pod.name);
        const kube::Pod* object = find_pod(job, pod.name);
        const bool lost = is_lost_here(job, pod, object);
        const bool unstarted = is_unstarted(job, pod, object, world_);
        const auto* avoided = find_avoided(job.status.avoided_nodes, pod.node);
        const bool by_volume = unstarted && avoided != nullptr && avoided->reason == kVolumeRefused;
        seen.held.push_back({pod.ordinal, pod.node, pod.gpu_type, pod.gpus, false, lost,
                             unstarted && !by_volume,
                             by_volume || is_refused(job, pod, object, world_), pod.cell});
        promised += pod.gpus;
        // A pod that was lost is replaced in this round, unless the job waits.
        const bool open = object == nullptr || object->node_name.empty();
        if (open && (!lost || !seen.refused.empty())) take_promise(pod, seen);
      }
      seen.started = !job.status.allocation->pods.empty();
    }
    const auto own = pods_of_.find(job.meta.uid);
    for (const kube::Pod* pod : own == pods_of_.end() ? kNoPods : own->second) {
      if (pod->is_finished()) continue;
      if (allocated.contains(pod->meta.name) || pod->node_name.empty()) continue;
      if (is_gone_for_us(*pod)) continue;
      seen.held.push_back({-1, pod->node_name, "", seen.per_pod.gpus, true, false});
    }
    seen.settled = is_settled(job, promised, allocated);
  }

  // A terminating pod on a node that is silent or gone will not come free soon, nor one that should
  // have ended long ago: nobody waits for it, and what it holds stays taken.
  bool is_gone_for_us(const kube::Pod& pod) const {
    const auto node = nodes_.find(pod.node_name);
    return node == nodes_.end() || !node->second.schedulable ||
           (pod.meta.deleting && world_.wall - *pod.meta.deleting > kOverdueAfter);
  }

  void take_promise(const api::AllocatedPod& pod, const sched::Job& job) {
    const auto node = nodes_.find(pod.node);
    if (node == nodes_.end() || planted(Bug::kForgetPromise)) return;
    node->second.free -= job.per_pod;
    node->second.free.gpus = std::max<sched::Gpus>(node->second.free.gpus, 0);
  }

  // No rescale under way: every allocated GPU trains, and nothing else does.
  bool is_settled(const api::TrainingJob& job, sched::Gpus promised,
                  const std::set<std::string>& allocated) const {
    if (promised == 0) return true;
    const auto view = world_.view_of ? world_.view_of(job.meta.uid) : std::nullopt;
    // As many as that may train while others are to take their places.
    return view && view->phase == coordinator::Phase::kTraining &&
           static_cast<sched::Gpus>(view->members.size()) == promised &&
           std::ranges::all_of(view->members, [&](const coordinator::MemberView& member) {
             return allocated.contains(member.pod);
           });
  }

  void add_queues() {
    queues_ = captured_queues_.with_jobs(world_.jobs);
    for (const auto& job : world_.jobs) {
      if (!is_schedulable(*job) || has_ended(world_, job->job.meta.uid)) add_leaver(job->job);
    }
  }

  // A job that is no longer scheduled holds what it was given until it gives it back, what is
  // promised to pods that are not there yet included.
  void add_leaver(const api::TrainingJob& job) {
    if (!job.status.allocation) return;
    const auto queue = queues_.find(captured_queues_.queue_of(job));
    for (const auto& pod : job.status.allocation->pods) {
      const kube::Pod* object = find_pod(job, pod.name);
      if (object != nullptr && is_lost_here(job, pod, object)) continue;
      if (queue != queues_.end()) queue->second.held_by_leavers[pod.gpu_type] += pod.gpus;
      const auto node = nodes_.find(pod.node);
      if (node == nodes_.end() || (object != nullptr && !object->node_name.empty())) continue;
      node->second.free.gpus = std::max<sched::Gpus>(node->second.free.gpus - pod.gpus, 0);
    }
  }

  // That of the class that was tried: the spec may name another since, and the class may be gone.
  api::JobPriority priority_in_force(const api::TrainingJob& job) const {
    if (job.status.priority) return *job.status.priority;
    return priority_of(job.spec.priority_class_name, world_.priorities)
        .value_or(api::JobPriority{});
  }

  // While the API server lets it have no more pods it stays as it is.
  void limit_growth(sched::Job& seen) const {
    const auto found = world_.growth_limits.find(seen.id);
    if (found == world_.growth_limits.end() || found->second.until <= world_.now) return;
    sched::Gpus stays = 0;
    for (const sched::Held& held : seen.held)
      if (held.stays()) stays += held.gpus;
    seen.max = std::min(seen.max, std::max({seen.min, stays, found->second.gpus}));
  }

  // The job's own: somebody else's under the name says nothing about the one that is to come.
  const kube::Pod* find_pod(const api::TrainingJob& job, const std::string& name) const {
    const auto found = pods_.find({job.meta.ns, name});
    if (found == pods_.end()) return nullptr;
    const auto& owner = found->second->meta.owner;
    return owner && owner->uid == job.meta.uid ? found->second : nullptr;
  }

  bool is_lost_here(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                    const kube::Pod* pod) const {
    return !node_names_.contains(allocated.node) || is_lost(job, allocated, pod, world_);
  }

  const World& world_;
  const Config& config_;
  const StorageView storage_;
  const CapturedQueues captured_queues_;
  const MeasuredSpeeds speeds_;
  ClaimUsers users_;
  std::map<kube::Key, const kube::Pod*> pods_;
  std::map<std::string, std::vector<const kube::Pod*>> pods_of_;  // by uid of the owner
  std::set<std::string> node_names_;
  std::set<std::string> offered_;        // kinds that some node has
  std::vector<sched::Resources> whole_;  // of each of World::nodes, whoever is on it
  std::map<std::string, sched::Node> nodes_;
  std::vector<sched::Job> jobs_;
  std::map<std::string, sched::Queue> queues_;
  std::vector<std::string> others_{std::string(kPods)};  // as sched::Resources::others has them
  std::map<std::string, Result<kube::Pod>> made_;        // by uid of the job
};

}  // namespace

sched::ClusterState capture(const World& world, const Config& config) {
  return Capture(world, config).run();
}

}  // namespace rubato::control
