// The first policy; scheduler/plan.h says what it does. One Round object per decision:
//   1. order the jobs          2. write off what is lost, shrink what is above its new max
//   3. minimums, in order      4. growth by marginal throughput      5. collect actions
#include "common/check.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/placement/place.h"
#include "scheduler/plan.h"
#include "scheduler/policy/sizes.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include <fmt/core.h>

namespace rubato::sched {

namespace {

struct Entry {
  const Job* job;
  Gpus now = 0;  // effective GPUs, this round's decisions included
  std::vector<Placement> add;
  std::vector<std::int64_t> remove;
  std::string reason;
  bool repaired = false;
  bool preempted = false;
  bool blocked = false;  // has no verdict of "placed": takes no part in growth
};

class Round {
 public:
  Round(const ClusterState& state, const PolicyConfig& config)
      : state_(state), config_(config), free_(state) {}

  Plan run() {
    order_jobs();
    for (Entry& entry : entries_) settle_losses(entry);
    for (Entry& entry : entries_) give_minimum(entry);
    grow();
    return collect();
  }

 private:
  void order_jobs() {
    for (const Job& job : state_.jobs)
      entries_.push_back({.job = &job, .now = effective_gpus(job)});
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      if (a.job->priority != b.job->priority) return a.job->priority > b.job->priority;
      if (a.job->queued_at != b.job->queued_at) return a.job->queued_at < b.job->queued_at;
      return a.job->id < b.job->id;
    });
    for (const Entry& entry : entries_) used_of_queue_[entry.job->queue] += entry.now;
  }

  // Lost pods leave the allocation at once; a job above its (lowered) max gives pods back.
  void settle_losses(Entry& entry) {
    const Job& job = *entry.job;
    for (const Held& held : job.held) {
      // Pods that have left the allocation already are nobody's to write off.
      if (!held.lost || held.leaving) continue;
      entry.remove.push_back(held.ordinal);
      entry.repaired = true;
      entry.reason = fmt::format("pod {} on node {} is lost", held.ordinal, held.node);
    }
    if (entry.now > job.max && job.settled) {
      shrink_to(entry, size_at_most(job, job.max).value_or(job.min), "gpus.max was lowered");
    }
  }

  void give_minimum(Entry& entry) {
    const Job& job = *entry.job;
    if (!job.refused.empty()) return verdict(entry, Outcome::kNotNow, "Refused", job.refused);
    const auto queue = state_.queues.find(job.queue);
    if (queue == state_.queues.end() && !job.started) {
      return verdict(entry, Outcome::kNotNow, "QueueUnknown",
                     fmt::format("there is no TrainingQueue \"{}\"; create it or change spec.queue",
                                 job.queue));
    }
    if (queue != state_.queues.end() && queue->second.closed && !job.started) {
      return verdict(entry, Outcome::kNotNow, "QueueClosed",
                     fmt::format("queue \"{}\" takes no new jobs", job.queue));
    }
    const auto wanted = size_at_least(job, entry.now);
    if (!wanted) {
      if (entry.now >= job.min) return verdict(entry, Outcome::kPlaced, "Placed", "");
      return verdict(entry, Outcome::kNever, "NoAllowedSize",
                     fmt::format("no size from {} to {} GPUs fits spec.gpus.shape and perPod",
                                 job.min, job.max));
    }
    if (entry.now >= job.min) return verdict(entry, Outcome::kPlaced, "Placed", "");
    if (exceeds_limit(job, *wanted - entry.now)) {
      return verdict(
          entry, Outcome::kNotNow, "QueueLimit",
          fmt::format("queue \"{}\" may hold {} GPUs and holds {}; {} more are needed", job.queue,
                      *queue->second.limit, used_of_queue_[job.queue], *wanted - entry.now));
    }
    if (const Gpus most = capacity_for(job); most < job.min) {
      return verdict(
          entry, Outcome::kNever, "ExceedsCluster",
          fmt::format("needs {} GPUs; the nodes it may use have {} in all", job.min, most));
    }
    place_or_make_room(entry, *wanted);
  }

  void place_or_make_room(Entry& entry, Gpus wanted) {
    const Job& job = *entry.job;
    const std::int64_t pods = (wanted - entry.now) / job.per_pod.gpus;
    if (auto placed = place(job, pods, free_)) {
      take(entry, *placed);
      if (entry.reason.empty()) entry.reason = fmt::format("{} GPUs are free", wanted);
      return verdict(entry, Outcome::kPlaced, "Placed", "");
    }
    const Gpus fit = pods_that_fit(job, free_) * job.per_pod.gpus;
    const std::string need =
        fmt::format("needs {} more GPUs, {} are free for it", wanted - entry.now, fit);
    if (auto from = make_room(entry, pods)) {
      return verdict(entry, Outcome::kNotNow, "WaitingForRelease", need + "; waits for " + *from);
    }
    verdict(entry, Outcome::kNotNow, "InsufficientGPUs",
            need + "; the rest is held by jobs at their minimum of equal or higher priority");
  }

  // Finds the least disruption after which the job fits: pods already leaving, then surplus of
  // elastic jobs (last in order first), then jobs of lower priority. What it settles on is kept
  // from everybody else in this round, since it is free only when the old pods are gone.
  std::optional<std::string> make_room(Entry& wanting, std::int64_t pods) {
    FreeMap trial = free_;
    for (const Entry& entry : entries_) {
      for (const Held& held : entry.job->held) {
        if (held.leaving && trial.nodes().contains(held.node)) {
          trial.give_back(held.node, entry.job->per_pod);
        }
      }
    }
    if (reserve_if_fits(*wanting.job, pods, trial)) return "pods that are leaving";

    std::vector<std::pair<Entry*, std::int64_t>> victims;  // (entry, ordinal)
    for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
      Entry& entry = *it;
      if (&entry == &wanting || !entry.job->settled || entry.now <= entry.job->min) continue;
      Gpus left = entry.now;
      for (const Held* held : releasable(entry)) {
        const auto next = size_at_most(*entry.job, left - held->gpus);
        if (!next || *next != left - held->gpus) break;
        if (!admits(*wanting.job, *trial.nodes().at(held->node))) continue;
        trial.give_back(held->node, entry.job->per_pod);
        victims.emplace_back(&entry, held->ordinal);
        left = *next;
        if (reserve_if_fits(*wanting.job, pods, trial)) {
          return shrink_victims(victims, wanting.job->name);
        }
      }
    }
    return config_.preempt ? preempt(wanting, pods, std::move(trial), victims) : std::nullopt;
  }

  std::optional<std::string> preempt(Entry& wanting, std::int64_t pods, FreeMap trial,
                                     std::vector<std::pair<Entry*, std::int64_t>> victims) {
    std::vector<Entry*> stopped;
    for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
      Entry& entry = *it;
      if (entry.job->priority >= wanting.job->priority) break;
      if (!entry.job->settled || entry.now == 0) continue;
      stopped.push_back(&entry);
      for (const Held* held : releasable(entry)) {
        const bool counted = std::any_of(victims.begin(), victims.end(), [&](const auto& v) {
          return v.first == &entry && v.second == held->ordinal;
        });
        if (!counted) trial.give_back(held->node, entry.job->per_pod);
      }
      if (!reserve_if_fits(*wanting.job, pods, trial)) continue;
      std::erase_if(victims, [&](const auto& v) {
        return std::find(stopped.begin(), stopped.end(), v.first) != stopped.end();
      });
      std::string names = shrink_victims(victims, wanting.job->name);
      for (Entry* victim : stopped) {
        for (const Held* held : releasable(*victim)) victim->remove.push_back(held->ordinal);
        used_of_queue_[victim->job->queue] -= victim->now;
        victim->now = 0;
        victim->preempted = true;
        victim->blocked = true;
        victim->reason = fmt::format("preempted by {} (priority {} over {})", wanting.job->name,
                                     wanting.job->priority, victim->job->priority);
        names += (names.empty() ? "" : ", ") + victim->job->name;
      }
      return names;
    }
    return std::nullopt;
  }

  // Pods that count, highest ordinal first: the youngest leaves first. Pods placed in this very
  // round have no ordinal yet and are left alone.
  static std::vector<const Held*> releasable(const Entry& entry) {
    std::vector<const Held*> pods;
    for (const Held& held : entry.job->held) {
      const bool removed =
          std::find(entry.remove.begin(), entry.remove.end(), held.ordinal) != entry.remove.end();
      if (!held.lost && !held.leaving && !removed) pods.push_back(&held);
    }
    std::sort(pods.begin(), pods.end(),
              [](const Held* a, const Held* b) { return a->ordinal > b->ordinal; });
    return pods;
  }

  std::string shrink_victims(const std::vector<std::pair<Entry*, std::int64_t>>& victims,
                             const std::string& for_whom) {
    std::string names;
    for (const auto& [entry, ordinal] : victims) {
      entry->remove.push_back(ordinal);
      entry->now -= entry->job->per_pod.gpus;
      used_of_queue_[entry->job->queue] -= entry->job->per_pod.gpus;
      entry->reason = fmt::format("gives GPUs to {}, which is below its minimum", for_whom);
      if (names.find(entry->job->name) == std::string::npos) {
        names += (names.empty() ? "" : ", ") + entry->job->name;
      }
    }
    return names;
  }

  bool reserve_if_fits(const Job& job, std::int64_t pods, const FreeMap& trial) {
    FreeMap copy = trial;
    const auto placed = place(job, pods, copy);
    if (!placed) return false;
    for (const Placement& placement : *placed) {
      const Resources left = free_.free().at(placement.node);
      Resources all = left;
      all.cpu = std::max<MilliCpu>(all.cpu, 0);
      all.memory = std::max<Bytes>(all.memory, 0);
      all.gpus = std::max<Gpus>(all.gpus, 0);
      free_.take(placement.node, all);
    }
    return true;
  }

  void shrink_to(Entry& entry, Gpus target, const std::string& reason) {
    for (const Held* held : releasable(entry)) {
      if (entry.now - held->gpus < target) break;
      entry.remove.push_back(held->ordinal);
      entry.now -= held->gpus;
      used_of_queue_[entry.job->queue] -= held->gpus;
    }
    entry.reason = reason;
  }

  // What is left over: one size step at a time to the job that gains most from it.
  void grow() {
    struct Step {
      double gain;
      std::size_t index;
      Gpus to;
      bool operator<(const Step& other) const {
        return gain != other.gain ? gain < other.gain : index > other.index;
      }
    };
    std::priority_queue<Step> steps;
    const auto push = [&](std::size_t index) {
      const Entry& entry = entries_[index];
      const Job& job = *entry.job;
      const bool starting = !entry.add.empty() && !job.started;
      if (entry.blocked || entry.now < job.min || (!job.settled && !starting)) return;
      if (std::any_of(entry.remove.begin(), entry.remove.end(),
                      [&](std::int64_t) { return !entry.repaired; })) {
        return;  // just shrunk
      }
      const auto to = size_at_least(job, entry.now + 1);
      if (!to || exceeds_limit(job, *to - entry.now)) return;
      const Throughput speed(job.measured, type_of(entry));
      const double now = speed.at(entry.now);
      const double then = speed.at(*to);
      if (then - now < config_.min_relative_gain * now) return;
      const double per_gpu = (then - now) / static_cast<double>(*to - entry.now);
      steps.push({job.weight * per_gpu / speed.at(std::max<Gpus>(job.min, 1)), index, *to});
    };
    for (std::size_t i = 0; i < entries_.size(); ++i) push(i);
    while (!steps.empty()) {
      const Step step = steps.top();
      steps.pop();
      Entry& entry = entries_[step.index];
      const auto placed =
          place(*entry.job, (step.to - entry.now) / entry.job->per_pod.gpus, free_, type_of(entry));
      if (!placed) continue;  // does not fit: neither would a larger step
      take(entry, *placed);
      if (entry.reason.empty()) entry.reason = "free GPUs raise its throughput";
      push(step.index);
    }
  }

  Plan collect() {
    Plan plan;
    plan.verdicts = std::move(verdicts_);
    for (Entry& entry : entries_) {
      if (entry.add.empty() && entry.remove.empty()) continue;
      Action action{.job = entry.job->id,
                    .add = std::move(entry.add),
                    .remove = std::move(entry.remove),
                    .reason = std::move(entry.reason)};
      std::sort(action.remove.begin(), action.remove.end());
      if (entry.preempted)
        action.kind = ActionKind::kPreempt;
      else if (!entry.job->started)
        action.kind = ActionKind::kStart;
      else if (entry.repaired)
        action.kind = ActionKind::kRepair;
      else if (action.remove.empty())
        action.kind = ActionKind::kGrow;
      else
        action.kind = ActionKind::kShrink;
      plan.actions.push_back(std::move(action));
    }
    // Releases before takes: the sooner a pod is told, the sooner its GPUs are free.
    std::stable_partition(plan.actions.begin(), plan.actions.end(),
                          [](const Action& a) { return !a.remove.empty(); });
    return plan;
  }

  void take(Entry& entry, const std::vector<Placement>& placed) {
    for (const Placement& placement : placed) {
      entry.add.push_back(placement);
      entry.now += placement.gpus;
      used_of_queue_[entry.job->queue] += placement.gpus;
    }
  }

  void verdict(Entry& entry, Outcome outcome, std::string reason, std::string message) {
    entry.blocked = entry.blocked || outcome != Outcome::kPlaced;
    verdicts_[entry.job->id] = {outcome, std::move(reason), std::move(message)};
  }

  bool exceeds_limit(const Job& job, Gpus more) {
    const auto queue = state_.queues.find(job.queue);
    return queue != state_.queues.end() && queue->second.limit &&
           used_of_queue_[job.queue] + more > *queue->second.limit;
  }

  // All GPUs of the nodes the job may use, of its best single type unless it may mix.
  Gpus capacity_for(const Job& job) const {
    std::map<std::string, Gpus> by_type;
    for (const Node& node : state_.nodes) {
      Node open = node;
      open.schedulable = true;  // a cordoned or silent node may come back
      if (admits(job, open)) {
        by_type[job.mix ? "" : node.gpu_type] +=
            node.gpus_total / job.per_pod.gpus * job.per_pod.gpus;
      }
    }
    Gpus best = 0;
    for (const auto& [type, gpus] : by_type) best = std::max(best, gpus);
    return best;
  }

  static std::string type_of(const Entry& entry) {
    for (const Held& held : entry.job->held) {
      if (!held.lost) return held.gpu_type;
    }
    return entry.add.empty() ? "" : entry.add.front().gpu_type;
  }

  const ClusterState& state_;
  const PolicyConfig& config_;
  FreeMap free_;
  std::vector<Entry> entries_;
  std::map<std::string, Gpus> used_of_queue_;
  std::map<JobId, Verdict> verdicts_;
};

}  // namespace

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kStart:
      return "start";
    case ActionKind::kGrow:
      return "grow";
    case ActionKind::kShrink:
      return "shrink";
    case ActionKind::kRepair:
      return "repair";
    case ActionKind::kPreempt:
      return "preempt";
  }
  check_failed(__FILE__, __LINE__, "ActionKind");
}

Plan make_plan(const ClusterState& state, const PolicyConfig& config) {
  return Round(state, config).run();
}

}  // namespace rubato::sched
