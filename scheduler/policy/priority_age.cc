// The first policy: plan.h says what it does, round.h in which steps.
#include "common/check.h"
#include "common/words.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/round.h"
#include "scheduler/policy/sizes.h"

#include <algorithm>
#include <queue>

#include <fmt/format.h>

namespace rubato::sched {

namespace {

std::string needed(const Job& job, Gpus gpus) {
  return counted(gpus, "GPU") + (job.one_node ? " on one node" : "");
}

std::string in_all(const Job& job, Gpus most) {
  return job.one_node ? fmt::format("the largest node it may use has {}", most)
                      : fmt::format("the nodes it may use have {} in all", most);
}

}  // namespace

Plan Round::run() {
  order_jobs();
  for (Entry& entry : entries_) settle_losses(entry);
  for (Entry& entry : entries_)
    if (is_inside_guarantee(entry)) give_minimum(entry);
  for (Entry& entry : entries_)
    if (!verdicts_.contains(entry.job->id)) give_minimum(entry);
  grow();
  return collect();
}

void Round::order_jobs() {
  for (const Job& job : state_.jobs) entries_.push_back({.job = &job, .now = effective_gpus(job)});
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    if (a.job->priority != b.job->priority) return a.job->priority > b.job->priority;
    if (a.job->queued_at != b.job->queued_at) return a.job->queued_at < b.job->queued_at;
    return a.job->id < b.job->id;
  });
  for (const auto& [name, queue] : state_.queues)
    for (const auto& [type, gpus] : queue.held_by_leavers) quota_.take(name, type, gpus);
  for (const Entry& entry : entries_) {
    for (const Held& held : entry.job->held)
      if (!held.lost && !held.leaving) quota_.take(entry.job->queue, held.gpu_type, held.gpus);
  }
}

// Lost pods leave the allocation at once; a job above its (lowered) max gives pods back.
void Round::settle_losses(Entry& entry) {
  const Job& job = *entry.job;
  for (const Held& held : job.held) {
    // Pods that have left the allocation already are nobody's to write off.
    if (!held.lost || held.leaving) continue;
    entry.remove.push_back(held.ordinal);
    entry.repaired = true;
    entry.reason = fmt::format("pod {} on node {} {}", held.ordinal, held.node,
                               held.unstarted ? "did not start in time"
                               : held.refused ? "cannot be used there"
                                              : "is lost");
  }
  if (entry.now > job.max && job.settled) {
    shrink_to(entry, size_at_most(job, job.max).value_or(job.min), "gpus.max was lowered");
  }
}

void Round::give_minimum(Entry& entry) {
  const Job& job = *entry.job;
  if (!job.refused.empty())
    return verdict(entry, Outcome::kNotNow, job.refused_as.empty() ? "Refused" : job.refused_as,
                   job.refused);
  const auto queue = state_.queues.find(job.queue);
  if (queue == state_.queues.end() && !job.started) {
    return verdict(
        entry, Outcome::kNotNow, "QueueUnknown",
        fmt::format("there is no TrainingQueue \"{}\"; create it or change spec.queue", job.queue));
  }
  if (!job.not_admitted.empty() && !job.started)
    return verdict(entry, Outcome::kNotNow, "QueueForbidden", job.not_admitted);
  if (queue != state_.queues.end() && queue->second.closed && !job.started) {
    return verdict(entry, Outcome::kNotNow, "QueueClosed",
                   fmt::format("queue \"{}\" takes no new jobs", job.queue));
  }
  const auto wanted = size_at_least(job, entry.now);
  if (!wanted) {
    if (entry.now >= job.min) return verdict(entry, Outcome::kPlaced, "Placed", "");
    return verdict(
        entry, Outcome::kNever, "NoAllowedSize",
        fmt::format("no size from spec.gpus.min ({}) to max ({}) suits shape and perPod; "
                    "change one of them",
                    job.min, job.max));
  }
  if (entry.now >= job.min) return verdict(entry, Outcome::kPlaced, "Placed", "");
  if (const Gpus room = room_for(job); room < *wanted - entry.now) {
    return verdict(
        entry, Outcome::kNotNow, "QueueLimit",
        fmt::format("queue \"{}\" holds {} and may take {} more that this job can use; "
                    "needed: {}",
                    job.queue, counted(quota_.used(job.queue), "GPU"), room, *wanted - entry.now));
  }
  if (const Gpus most = capacity_for(job); most < job.min) {
    return verdict(entry, Outcome::kNever, "ExceedsCluster",
                   fmt::format("needs {}; {}{}", needed(job, job.min), in_all(job, most),
                               job.narrowed.empty() ? "" : " (" + job.narrowed + ")"));
  }
  if (avoids_all(job)) {
    return verdict(entry, Outcome::kNotNow, "EveryNodeAvoided",
                   fmt::format("pods of it were of no use on any node that it may use ({}); they "
                               "are tried again in a while",
                               fmt::join(job.avoid, ", ")));
  }
  // No room that others make helps it before one of those nodes is tried again.
  if (const Gpus most = capacity_not_avoided(job); most < job.min) {
    return verdict(entry, Outcome::kNotNow, "NodesAvoided",
                   fmt::format("needs {}; the nodes it may use have {} in all (for now none "
                               "on {}, where a pod of it was of no use: status.avoidedNodes says "
                               "why, and until when{})",
                               counted(job.min, "GPU"), most, fmt::join(job.avoid, ", "),
                               job.narrowed.empty() ? "" : "; " + job.narrowed));
  }
  place_or_make_room(entry, *wanted);
}

void Round::shrink_to(Entry& entry, Gpus target, const std::string& reason) {
  for (const Held* held : releasable(entry)) {
    if (entry.now - held->gpus < target) break;
    entry.remove.push_back(held->ordinal);
    entry.now -= held->gpus;
    quota_.give_back(entry.job->queue, held->gpu_type, held->gpus);
  }
  entry.reason = reason;
}

// None: it is not to grow now, or no allowed size is worth it.
std::optional<Round::Step> Round::next_step(std::size_t index) const {
  const Entry& entry = entries_[index];
  const Job& job = *entry.job;
  const bool starting = !entry.add.empty() && !job.started;
  const bool just_shrunk = !entry.remove.empty() && !entry.repaired;
  if (entry.blocked || just_shrunk || entry.now < job.min) return std::nullopt;
  if (!job.settled && !starting) return std::nullopt;
  if (job.started && job.cooling && entry.add.empty()) return std::nullopt;
  const auto to = size_at_least(job, entry.now + 1);
  if (!to || room_for(job) < *to - entry.now) return std::nullopt;
  const Throughput speed(job.measured, type_of(entry));
  const double now = speed.at(entry.now);
  const double then = speed.at(*to);
  if (then - now < config_.min_relative_gain * now) return std::nullopt;
  const double per_gpu = (then - now) / static_cast<double>(*to - entry.now);
  return Step{job.weight * per_gpu / speed.at(std::max<Gpus>(job.min, 1)), index, *to};
}

// What is left over: one size step at a time to the job that gains most from it.
void Round::grow() {
  std::priority_queue<Step> steps;
  const auto push = [&](std::size_t index) {
    if (const auto step = next_step(index)) steps.push(*step);
  };
  for (std::size_t i = 0; i < entries_.size(); ++i) push(i);
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    Entry& entry = entries_[step.index];
    const bool is_disturbed = entry.job->started && entry.add.empty();
    if (is_disturbed && grown_ >= config_.grown_per_round) continue;
    const auto placed = place(*entry.job, (step.to - entry.now) / entry.job->per_pod.gpus, free_,
                              room_of(*entry.job), placed_so_far(entry));
    if (!placed) continue;  // does not fit: neither would a larger step
    if (is_disturbed) ++grown_;
    take(entry, *placed);
    if (entry.reason.empty()) entry.reason = "free GPUs raise its throughput";
    push(step.index);
  }
}

Plan Round::collect() {
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

void Round::take(Entry& entry, const std::vector<Placement>& placed) {
  for (const Placement& placement : placed) {
    entry.add.push_back(placement);
    entry.now += placement.gpus;
    quota_.take(entry.job->queue, placement.gpu_type, placement.gpus);
  }
}

void Round::verdict(Entry& entry, Outcome outcome, std::string reason, std::string message) {
  entry.blocked = entry.blocked || outcome != Outcome::kPlaced;
  verdicts_[entry.job->id] = {outcome, std::move(reason), std::move(message)};
}

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

std::string to_text(ActionKind kind, Gpus gpus) {
  if (gpus == 0) return "holds no GPUs any more";
  switch (kind) {
    case ActionKind::kStart:
      return "starts with " + counted(gpus, "GPU");
    case ActionKind::kGrow:
      return "grows to " + counted(gpus, "GPU");
    case ActionKind::kShrink:
      return "shrinks to " + counted(gpus, "GPU");
    case ActionKind::kRepair:
      return "goes on with " + counted(gpus, "GPU");
    case ActionKind::kPreempt:
      return "keeps " + counted(gpus, "GPU");
  }
  check_failed(__FILE__, __LINE__, "ActionKind");
}

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPlaced:
      return "placed";
    case Outcome::kNotNow:
      return "notNow";
    case Outcome::kNever:
      return "never";
  }
  check_failed(__FILE__, __LINE__, "Outcome");
}

Plan make_plan(const ClusterState& state, const PolicyConfig& config) {
  return Round(state, config).run();
}

}  // namespace rubato::sched
