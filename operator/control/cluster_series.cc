#include "operator/control/cluster_series.h"

#include "operator/api/codec.h"
#include "operator/api/conditions.h"
#include "operator/control/leaving_nodes.h"
#include "operator/control/metric_catalog.h"
#include "operator/control/topology.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace rubato::control {

std::int32_t held(const api::TrainingJob& job) {
  return job.status.allocation ? job.status.allocation->gpus : 0;
}

namespace {

// Since when it has waited for GPUs; none: it does not.
std::optional<WallTime> waits_since(const api::TrainingJob& job) {
  if (held(job) > 0 || job.spec.suspend || job.meta.is_deleting() ||
      api::is_finished(job.status.conditions))
    return std::nullopt;
  const auto* queued = api::find_condition(job.status.conditions, api::condition::kQueued);
  if (queued != nullptr && queued->status == api::ConditionStatus::kTrue &&
      queued->last_transition_time)
    return queued->last_transition_time;
  return job.meta.creation_time;
}

WallTime state_since(const api::TrainingJob& job) {
  WallTime since = job.meta.creation_time.value_or(WallTime{});
  for (const api::Condition& condition : job.status.conditions)
    if (condition.last_transition_time) since = std::max(since, *condition.last_transition_time);
  return since;
}

// Names that become values of a label, at most so many of them.
class Bounded {
 public:
  explicit Bounded(std::size_t most) : most_(most) {}
  std::string_view operator()(std::string_view name) {
    if (known_.contains(name)) return name;
    if (known_.size() >= most_) return kOtherSeries;
    known_.emplace(name);
    return name;
  }

 private:
  std::size_t most_;
  std::set<std::string, std::less<>> known_;
};

class Series {
 public:
  Series(const ClusterSeries& cluster, Exposition& out) : cluster_(cluster), out_(out) {}

  void put() {
    choose();
    of_jobs();
    of_queues();
    of_nodes();
  }

 private:
  using JobPointer = const api::TrainingJob*;

  // Who holds GPUs, then who waits, then who has ended; the oldest first, by name where equal.
  void choose() {
    std::vector<std::pair<int, JobPointer>> ranked;
    ranked.reserve(cluster_.jobs.size());
    for (const auto& object : cluster_.jobs) {
      const api::TrainingJob& job = object->job;
      const int rank = held(job) > 0 ? 0 : api::is_finished(job.status.conditions) ? 2 : 1;
      ranked.emplace_back(rank, &job);
    }
    const auto before = [](const auto& a, const auto& b) {
      return std::tuple(a.first, a.second->meta.creation_time) <
             std::tuple(b.first, b.second->meta.creation_time);
    };
    if (ranked.size() > kJobsWithSeries) {
      std::ranges::stable_sort(ranked, before);
      ranked.resize(kJobsWithSeries);
    }
    for (const auto& [rank, job] : ranked) shown_.push_back(job);
  }

  // One family for all jobs; nothing for those of which there is nothing to say.
  template <class Value>
  void family(std::string_view name, Value value) {
    out_.family(metric(name));
    for (const JobPointer job : shown_)
      if (const std::optional<double> number = value(*job))
        out_.sample({job->meta.ns, job->meta.name}, *number);
  }

  void of_jobs() {
    out_.family(metric("rubato_job_info"));
    for (const JobPointer job : shown_)
      out_.sample({job->meta.ns, job->meta.name, job->meta.uid, job->spec.queue,
                   job->spec.priority_class_name, api::name_of(job->spec.runtime)},
                  1);
    out_.family(metric("rubato_job_state"));
    for (const JobPointer job : shown_)
      out_.sample({job->meta.ns, job->meta.name, api::state_of(job->status.conditions)}, 1);
    times();
    sizes();
    progress();
    costs();
    out_.family(metric("rubato_jobs_without_series"));
    out_.sample({}, static_cast<double>(cluster_.jobs.size() - shown_.size()));
  }

  using Job = api::TrainingJob;
  using Number = std::optional<double>;

  void times() {
    const auto time = [](const std::optional<WallTime>& at) {
      return at ? Number(seconds_since_epoch(*at)) : std::nullopt;
    };
    family("rubato_job_created_timestamp_seconds",
           [&](const Job& job) { return time(job.meta.creation_time); });
    family("rubato_job_started_timestamp_seconds",
           [&](const Job& job) { return time(job.status.start_time); });
    family("rubato_job_state_since_timestamp_seconds",
           [&](const Job& job) { return time(state_since(job)); });
  }

  void sizes() {
    family("rubato_job_gpus", [](const Job& job) -> Number { return held(job); });
    family("rubato_job_min_gpus", [](const Job& job) -> Number { return job.spec.gpus.min; });
    family("rubato_job_max_gpus", [](const Job& job) -> Number { return job.spec.gpus.max; });
    family("rubato_job_workers", [](const Job& job) -> Number {
      const bool has_members = held(job) > 0 && job.status.membership;
      if (!has_members) return 0;
      const auto& membership = *job.status.membership;  // one of an earlier build has no size
      const auto listed = static_cast<std::int64_t>(membership.members.size());
      return static_cast<double>(std::max(membership.size, listed));
    });
    family("rubato_job_avoided_nodes", [](const Job& job) -> Number {
      return static_cast<double>(job.status.avoided_nodes.size());
    });
  }

  void progress() {
    const auto of = [](auto member) {
      return [member](const Job& job) -> Number {
        if (!job.status.progress) return std::nullopt;
        return static_cast<double>((*job.status.progress).*member);
      };
    };
    family("rubato_job_step", of(&api::Progress::step));
    family("rubato_job_target_steps", of(&api::Progress::steps));
    family("rubato_job_checkpoint_step", of(&api::Progress::checkpoint_step));
    family("rubato_job_tokens", of(&api::Progress::tokens));
    family("rubato_job_recomputed_steps_total", of(&api::Progress::recomputed_steps));
    family("rubato_job_loss", [](const Job& job) {
      return job.status.progress ? job.status.progress->loss : std::nullopt;
    });
    family("rubato_job_tokens_per_second", [](const Job& job) -> Number {
      const bool steps = api::is_true(job.status.conditions, api::condition::kRunning);
      if (!job.status.performance) return std::nullopt;
      if (!job.spec.training && job.status.performance->by_type.empty()) return std::nullopt;
      return steps ? job.status.performance->tokens_per_second : 0;
    });
    family("rubato_job_gradient_noise_scale", [](const Job& job) {
      return job.status.performance ? job.status.performance->gradient_noise_scale : std::nullopt;
    });
  }

  void costs() {
    family("rubato_job_goodput_ratio", [](const Job& job) {
      return job.status.performance ? job.status.performance->goodput : std::nullopt;
    });
    out_.family(metric("rubato_job_gpu_seconds"));
    for (const JobPointer job : shown_) {
      const auto& lost = job->status.lost_gpu_seconds;
      if (!job->status.useful_gpu_seconds || !lost) continue;
      const auto put = [&](std::string_view use, double seconds) {
        out_.sample({job->meta.ns, job->meta.name, use}, seconds);
      };
      put("useful", *job->status.useful_gpu_seconds);
      put("queue", lost->queue);
      put("rescale", lost->rescale);
      put("failure", lost->failure);
      put("checkpoint", lost->checkpoint);
      put("straggling", lost->straggling.value_or(0));
    }
    family("rubato_job_rescales_total", [](const Job& job) -> Number {
      return job.status.rescales ? static_cast<double>(job.status.rescales->count) : 0;
    });
    out_.family(metric("rubato_job_restarts_total"));
    for (const JobPointer job : shown_) {
      const api::Restarts restarts = job->status.restarts.value_or(api::Restarts{});
      out_.sample({job->meta.ns, job->meta.name, "true"}, restarts.count);
      out_.sample({job->meta.ns, job->meta.name, "false"}, restarts.infrastructure);
    }
  }

  void of_queues() {
    Bounded queue_name(kQueuesWithSeries);
    std::map<std::string_view, std::map<std::string_view, int>> states;
    std::map<std::string_view, double> oldest;
    std::map<std::pair<std::string_view, std::string_view>, std::int32_t> gpus;
    // Queues that are there come first: a job may name one that is not.
    for (const auto& queue : cluster_.queues) {
      const std::string_view name = queue_name(queue->meta.name);
      states[name];
      oldest[name];
    }
    for (const auto& object : cluster_.jobs) {
      const api::TrainingJob& job = object->job;
      const std::string_view queue = queue_name(job.spec.queue);
      ++states[queue][api::state_of(job.status.conditions)];
      double& longest = oldest[queue];
      if (const auto since = waits_since(job))
        longest = std::max(longest, std::chrono::duration<double>(cluster_.now - *since).count());
      if (!job.status.allocation) continue;
      for (const auto& pod : job.status.allocation->pods)
        gpus[{queue, gpu_type_(pod.gpu_type)}] += pod.gpus;
    }
    out_.family(metric("rubato_jobs"));
    for (const auto& [queue, counts] : states)
      for (const std::string_view state : job_states()) {
        const auto found = counts.find(state);
        out_.sample({queue, state}, found == counts.end() ? 0 : found->second);
      }
    out_.family(metric("rubato_queue_oldest_wait_seconds"));
    for (const auto& [queue, wait] : oldest) out_.sample({queue}, wait);
    out_.family(metric("rubato_queue_gpus"));
    for (const auto& [key, count] : gpus) out_.sample({key.first, key.second}, count);
    quotas(queue_name);
  }

  void quotas(Bounded& queue_name) {
    int enforced = 0;
    std::map<std::pair<std::string_view, std::string_view>,
             std::pair<std::int32_t, std::optional<std::int32_t>>>
        rows;
    for (const auto& object : cluster_.queues) {
      enforced += api::is_true(object->queue.status.conditions, api::condition::kEnforced) ? 1 : 0;
      const std::string_view name = queue_name(object->meta.name);
      if (name == kOtherSeries) continue;
      for (const api::QueueQuota& quota : object->queue.spec.quotas)
        rows[{name, gpu_type_(quota.gpu_type)}] = {quota.guaranteed, quota.limit};
    }
    out_.family(metric("rubato_queues"));
    out_.sample({"true"}, enforced);
    out_.sample({"false"}, static_cast<double>(cluster_.queues.size()) - enforced);
    out_.family(metric("rubato_queue_guaranteed_gpus"));
    for (const auto& [key, quota] : rows) out_.sample({key.first, key.second}, quota.first);
    out_.family(metric("rubato_queue_limit_gpus"));
    for (const auto& [key, quota] : rows)
      if (quota.second) out_.sample({key.first, key.second}, *quota.second);
  }

  void of_nodes() {
    std::map<std::string_view, std::pair<std::int64_t, std::int64_t>> types;  // all, schedulable
    for (const auto& node : cluster_.nodes) {
      const std::int64_t gpus = kube::amount_of(node->allocatable, cluster_.gpu_resource);
      if (gpus == 0) continue;
      auto& [all, schedulable] = types[gpu_type_(gpu_type_of(*node, cluster_.gpu_type_label))];
      all += gpus;
      if (node->ready == kube::Node::Ready::kTrue && !node->unschedulable) schedulable += gpus;
    }
    out_.family(metric("rubato_cluster_gpus"));
    for (const auto& [type, counts] : types) out_.sample({type}, static_cast<double>(counts.first));
    out_.family(metric("rubato_cluster_schedulable_gpus"));
    for (const auto& [type, counts] : types)
      out_.sample({type}, static_cast<double>(counts.second));
    const auto unreadable = std::ranges::count_if(
        cluster_.nodes, [](const auto& node) { return !maintenance_of(*node).ok(); });
    out_.family(metric("rubato_cluster_unreadable_maintenances"));
    out_.sample({}, static_cast<double>(unreadable));
  }

  const ClusterSeries& cluster_;
  Exposition& out_;
  std::vector<JobPointer> shown_;
  Bounded gpu_type_{kGpuTypesWithSeries};
};

}  // namespace

const std::vector<std::string_view>& job_states() {
  static const std::vector<std::string_view> kStates = {
      "Pending", "Queued",     "Starting",  "Running",     "Rescaling", "Recovering",
      "Parked",  "Suspending", "Suspended", "Terminating", "Complete",  "Failed"};
  return kStates;
}

void expose(const ClusterSeries& cluster, Exposition& out) { Series(cluster, out).put(); }

}  // namespace rubato::control
