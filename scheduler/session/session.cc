// Who is served, in which order, and what is left over: session.h has the steps.
#include "scheduler/session/session.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <ranges>

namespace rubato::sched {

Session::Session(const Problem& problem, const Targets& targets, const PolicyConfig& config,
                 Kept kept)
    : problem_(problem),
      targets_(targets),
      config_(config),
      free_(problem),
      quota_(problem),
      lasting_(quota_),
      placer_(problem, free_, quota_),
      cells_(problem),
      settled_(problem.count_types()),
      holders_of_queue_(problem.count_queues()),
      surplus_of_queue_(problem.count_queues(), 0),
      lowest_of_queue_(problem.count_queues(), std::numeric_limits<std::int64_t>::max()),
      kept_(problem.count_queues(), 0),
      guarantors_(problem.count_types()),
      verdicts_(problem.state().jobs.size()),
      from_anybody_(problem.count_types(), 0),
      held_by_queue_(problem.count_types()),
      held_mixed_(problem.count_types(), 0),
      bound_to_type_(problem.count_types(), 0) {
  CHECK_EQ(targets.order.size(), problem.state().jobs.size());
  has_leaving_nodes_ = std::ranges::any_of(problem.state().nodes, &Node::leaving);
  entries_.reserve(targets.order.size());
  for (const JobIndex j : targets.order) entries_.push_back(entry_of(j));
  for (const auto& [name, queue] : problem.state().queues)
    for (const auto& [type, gpus] : queue.held_by_leavers) {
      quota_.take(problem.queue_named(name), problem.type_named(type), gpus);
      has_leavers_ = has_leavers_ || gpus > 0;
    }
  for (Entry& entry : entries_) {
    const bool runs_on = kept == Kept::kRunOn && entry.job->runs_on(problem.state().now_ms);
    entry.may_stop = config.preempt && !runs_on;
    for (const Pod& pod : entry.pods) quota_.take(queue_of(entry), pod.type, pod.gpus);
    if (entry.pods.empty()) continue;
    count_lasting_held(entry);
    holders_.push_back(&entry);
    if (entry.job->settled) {
      const auto type = only_type(entry);
      (type ? settled_[*type] : settled_mixed_).push_back({&entry, queue_of(entry)});
    }
    for (std::optional<QueueIndex> q = queue_of(entry); q; q = problem.parent_of(*q)) {
      holders_of_queue_[*q].push_back(&entry);
      lowest_of_queue_[*q] = std::min(lowest_of_queue_[*q], entry.job->priority);
    }
  }
}

std::optional<TypeIndex> Session::only_type(const Entry& entry) const {
  const TypeIndex type = entry.pods.front().type;
  const bool is_only = std::ranges::all_of(entry.pods, [&](const Pod& pod) {
    return pod.type == type && pod.node && problem_.type_of(*pod.node) == type;
  });
  return is_only ? std::optional(type) : std::nullopt;
}

Session::Entry Session::entry_of(JobIndex j) {
  const Job& job = problem_.job(j);
  Entry entry{.index = j, .job = &job, .min = job.min, .priority = job.priority};
  entry.is_guest = !job.guest_of.empty();
  entry.pods.reserve(job.held.size());
  for (std::size_t i = 0; i < job.held.size(); ++i) {
    const Held& held = job.held[i];
    const auto& [type, node] = problem_.held_at(j)[i];
    if (held.leaving && node && !entry.is_guest) {
      leaving_.emplace_back(*node, &job.per_pod);
      from_anybody_[problem_.type_of(*node)] += job.per_pod.gpus;
    }
    if (held.lost) continue;
    if (!entry.type) entry.type = type;
    if (!held.gpu_type.empty() && std::ranges::find(entry.types, type) == entry.types.end())
      entry.types.push_back(type);
    if (held.leaving) continue;
    entry.now += held.gpus;
    if (entry.is_guest) continue;
    entry.pods.push_back({.ordinal = held.ordinal,
                          .gpus = held.gpus,
                          .type = type,
                          .node = node,
                          .was_in_cell = cells_.is_inside(j, i),
                          .in_cell = cells_.is_inside(j, i)});
  }
  std::ranges::sort(entry.pods, std::greater{}, [&](const Pod& pod) {
    return std::tuple(!pod.in_cell, is_on_leaving_node(pod), pod.ordinal);
  });
  return entry;
}

Plan Session::run() {
  for (Entry& entry : entries_) settle_losses(entry);
  for (Entry& entry : std::views::reverse(entries_)) keep_limit(entry);
  if (!targets_.places.empty()) leave_other_places();
  if (!targets_.sizes.empty()) shrink_to_targets();
  settle_guests();
  count_what_others_can_give();
  count_bound_to_types();
  if (quota_.has_guarantees()) list_waiting();
  if (cells_.exist()) give_cells();
  if (quota_.has_guarantees())
    for (std::size_t level = quota_.deepest_level(); level > 0; --level)
      for (Entry& entry : entries_)
        if (!entry.has_verdict && !entry.job->gets_spare_only())
          if (const auto queue = guarantor_of(entry); queue && quota_.level_of(*queue) == level)
            give_minimum(entry);
  for (const bool spare_only : {false, true})
    for (Entry& entry : entries_)
      if (!entry.has_verdict && entry.job->gets_spare_only() == spare_only) give_minimum(entry);
  if (targets_.stops_for_growth) stop_for_growth();
  if (targets_.few_nodes_yield || !targets_.starts.empty()) start_with_what_fits();
  if (!targets_.sizes.empty()) grow_to_targets();
  if (targets_.stops_for_growth) start_with_what_is_left();
  if (targets_.sizes.empty() || config_.min_relative_gain < 0) grow();
  for (Entry& entry : entries_) keep_shape(entry);
  leave_hosts_that_change();
  return collect();
}

void Session::count_what_others_can_give() {
  bool is_by_priority = true;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    const Entry& entry = entries_[i];
    if (entry.job->settled) {
      count_held(entry, i);
      auto end = entry.pods.begin();
      // Those that take back what it has borrowed leave it its minimum.
      const Gpus least = quota_.has_guarantees() ? entry.job->min : least_kept(entry);
      for (Gpus left = entry.now; end != entry.pods.end() && left > least; ++end) left -= end->gpus;
      count_from_anybody(entry, {entry.pods.begin(), end});
      const Gpus surplus = std::max<Gpus>(entry.now - least, 0);
      for (std::optional<QueueIndex> q = queue_of(entry); q; q = problem_.parent_of(*q))
        surplus_of_queue_[*q] += surplus;
    }
    is_by_priority =
        is_by_priority && (i == 0 || entries_[i - 1].job->priority >= entry.job->priority);
  }
  // Those of lower priority may be anywhere.
  is_by_order_ = targets_.displaces != Displaces::kLowerPriority || is_by_priority;
}

void Session::count_held(const Entry& entry, std::size_t index) {
  if (entry.pods.empty() || !entry.may_stop) return;
  const TypeIndex type = problem_.type_of(node_of(entry.pods.front()));
  const auto is_other = [&](const Pod& pod) { return problem_.type_of(node_of(pod)) != type; };
  if (entry.type != type || std::ranges::any_of(entry.pods, is_other)) {
    for (const Pod& pod : entry.pods)
      held_mixed_[problem_.type_of(node_of(pod))] += entry.job->per_pod.gpus;
    return;
  }
  std::vector<HeldBehind>& held = held_by_queue_[type][queue_of(entry)];
  const Gpus gpus = std::ssize(entry.pods) * entry.job->per_pod.gpus;
  held.push_back({index, (held.empty() ? 0 : held.back().gpus) + gpus});
}

// Pods that come free, or may.
void Session::count_from_anybody(const Entry& entry, std::span<const Pod> pods) {
  for (const Pod& pod : pods)
    from_anybody_[problem_.type_of(node_of(pod))] += entry.job->per_pod.gpus;
}

// Lost pods leave the allocation at once; a job above its (lowered) max gives pods back.
void Session::settle_losses(Entry& entry) {
  const Job& job = *entry.job;
  for (const Held& held : job.held) {
    // Pods that have left the allocation already are nobody's to write off.
    if (!held.lost || held.leaving) continue;
    entry.remove.push_back(held.ordinal);
    entry.repaired = true;
    entry.cause = PodLost{.ordinal = held.ordinal,
                          .node = held.node,
                          .how = held.unstarted ? PodLost::How::kNotStarted
                                 : held.refused ? PodLost::How::kRefused
                                                : PodLost::How::kLost};
  }
  if (entry.now > job.max && job.settled) {
    shrink_to(entry, size_at_most(job, job.max).value_or(job.min));
    entry.cause = MaxLowered{};
  }
}

// Of a queue that holds more than it may, for that was lowered: surplus of elastic jobs goes, that
// of the last in order first; nobody is stopped.
void Session::keep_limit(Entry& entry) {
  if (!entry.job->settled || entry.host != nullptr) return;
  while (!entry.pods.empty() && entry.now > entry.job->min) {
    const auto over = quota_.over_limit(queue_of(entry), entry.pods.front().type);
    const auto less = over ? size_at_most(*entry.job, entry.now - 1) : std::nullopt;
    const Gpus before = entry.now;
    if (less && *less >= entry.job->min) shrink_to(entry, *less);
    if (entry.now == before) return;
    entry.cause = LimitLowered{problem_.queue(*over)->name};
  }
}

// Of a job whose spec.gpus allows its size no longer, and that does not grow, now or when its turn
// comes: the next smaller one that it does, if there is one.
void Session::keep_shape(Entry& entry) {
  const bool is_changed = !entry.add.empty() || !entry.remove.empty();
  if (!entry.job->settled || entry.job->cooling || is_changed || entry.host != nullptr) return;
  const auto larger = size_at_least(*entry.job, entry.now);
  const bool waits_its_turn = grown_ >= config_.grown_per_round && may_grow(entry);
  if (waits_its_turn && larger && *larger - entry.now <= gpus_that_fit(entry)) return;
  const auto size = size_at_most(*entry.job, entry.now);
  if (!size || *size == entry.now) return;
  shrink_to(entry, *size);
  if (!entry.remove.empty()) entry.cause = SizeNotAllowed{};
}

void Session::give_minimum(Entry& entry) {
  const Job& job = *entry.job;
  if (entry.host != nullptr) return verdict(entry, {});
  if (Verdict no = why_kept_out(entry); no.outcome != Outcome::kPlaced)
    return verdict(entry, std::move(no));
  const auto wanted = least_wanted(entry);
  if (is_to_move(entry) && move_to_type(entry, size_after_move(entry))) return;
  if (entry.now >= job.min) {
    if (const auto node = leave_nodes(entry))
      return verdict(entry, {.reason = Reason::kNodeLeaves, .node = problem_.node(*node).id});
    return verdict(entry, {.reason = has_queue(entry) ? Reason::kPlaced : Reason::kQueueUnknown});
  }
  if (!wanted)
    return verdict(entry, {.outcome = Outcome::kNever, .reason = Reason::kNoAllowedSize});
  Verdict no = why_too_large(entry, *wanted);
  no.needed = *wanted - entry.now;
  const bool is_full = no.outcome == Outcome::kNotNow && no.reason == Reason::kQueueLimit;
  if (no.outcome != Outcome::kPlaced && !is_full) return verdict(entry, std::move(no));
  if (!keep_to_guarantee(entry))
    return verdict(entry, {.outcome = Outcome::kNotNow,
                           .reason = Reason::kGuaranteeFull,
                           .needed = no.needed,
                           .in_use = lasting_.used(queue_of(entry))});
  if (waits_in_turn(entry, *wanted)) {
    if (is_full) verdict(entry, std::move(no));
    return;
  }
  if (is_full) {
    if (auto from =
            entry.job->gets_spare_only() ? std::nullopt : make_room_in_queue(entry, *wanted)) {
      no.reason = Reason::kWaitingForRelease;
      no.waits_for = std::move(*from);
      count_lasting_promised(entry);
    }
    return verdict(entry, std::move(no));
  }
  place_or_make_room(entry, *wanted);
  // For who will never be placed nobody waits.
  const bool waits = verdicts_[entry.index.value].outcome == Outcome::kNotNow;
  if (waits && entry.blocked && head_ == nullptr && !entry.job->gets_spare_only()) head_ = &entry;
}

// None: no size is allowed.
std::optional<Gpus> Session::least_wanted(const Entry& entry) const {
  const Job& job = *entry.job;
  if (!job.started)
    if (const auto start = start_size(entry)) return start;
  return size_at_least(job, entry.now);
}

// None: the policy says none, or it cannot be had.
std::optional<Gpus> Session::start_size(const Entry& entry) const {
  if (targets_.starts.empty()) return std::nullopt;
  const Job& job = *entry.job;
  const auto start = size_at_least(job, std::max(job.min, targets_.starts[entry.index.value]));
  const bool may_be = start && why_too_large(entry, *start).outcome == Outcome::kPlaced;
  return may_be ? start : std::nullopt;
}

// That it must find there. One that would start elsewhere with what it does not find would come
// back, and go on so for ever.
Gpus Session::size_after_move(const Entry& entry) const {
  const auto start = yields(entry) ? start_size(entry) : std::nullopt;
  return start ? *start : *size_at_least(*entry.job, entry.job->min);
}

// Do the caller, its queue and the load let it have GPUs at all? kPlaced: they do.
Verdict Session::why_kept_out(const Entry& entry) const {
  const Job& job = *entry.job;
  const Queue* queue = problem_.queue(problem_.home_of(queue_of(entry)));
  const auto because = [](Reason why) {
    return Verdict{.outcome = Outcome::kNotNow, .reason = why};
  };
  if (!job.refused.empty()) return because(Reason::kRefused);
  if (job.started) return {};
  if (queue == nullptr) return because(Reason::kQueueUnknown);
  if (!job.not_admitted.empty()) return because(Reason::kQueueForbidden);
  if (queue->closed) return because(Reason::kQueueClosed);
  const Problem::Overload* load = problem_.held_back(entry.index);
  if (load == nullptr) return {};
  return {.outcome = Outcome::kNotNow,
          .reason = Reason::kLoadLimit,
          .needed = size_at_least(job, 0).value_or(job.min),
          .available = load->most,
          .in_use = load->wanted_before};
}

// It is not to have room made for it, and is told so.
bool Session::waits_in_turn(Entry& entry, Gpus wanted) {
  // Stopped in this round, its pods are still there; or the policy gives it nothing.
  if (entry.preempted || (is_left_out(entry) && !entry.job->gets_spare_only())) {
    tell_to_wait(entry, wanted);
    return true;
  }
  if (!targets_.head_blocks || head_ == nullptr) return false;
  verdict(entry, {.outcome = Outcome::kNotNow,
                  .reason = Reason::kBehind,
                  .needed = wanted - entry.now,
                  .waits_for = {head_->job->name}});
  return true;
}

void Session::tell_to_wait(Entry& entry, std::optional<Gpus> wanted) {
  verdict(entry, {.outcome = Outcome::kNotNow,
                  .reason = Reason::kInsufficientGpus,
                  .needed = wanted.value_or(entry.job->min),
                  .available = count_fitting(entry) * entry.job->per_pod.gpus});
}

void Session::shrink_to(Entry& entry, Gpus target) {
  auto pod = entry.pods.begin();
  for (; pod != entry.pods.end() && entry.now - pod->gpus >= target; ++pod) {
    entry.remove.push_back(pod->ordinal);
    entry.now -= pod->gpus;
    quota_.give_back(queue_of(entry), pod->type, pod->gpus);
  }
  entry.pods.erase(entry.pods.begin(), pod);
}

bool Session::may_grow(const Entry& entry) const {
  const Job& job = *entry.job;
  if (entry.host != nullptr) return false;
  const bool starting = !entry.add.empty() && !job.started;
  const bool just_shrunk = !entry.remove.empty() && !entry.repaired;
  if (entry.blocked || just_shrunk || entry.now < job.min) return false;
  // What the queue may hold is not known where there is none.
  if (is_confined_to_cells(entry) || !has_queue(entry)) return false;
  if (!job.settled && !starting) return false;
  return !job.started || !job.cooling || !entry.add.empty();
}

Throughput Session::speed_of(const Entry& entry) const {
  const auto type = type_of(entry);
  return {entry.job->measured, type ? problem_.name(*type) : ""};
}

// To at most `most` GPUs. None: it is not to grow now, or no allowed size is worth it. A size that
// was measured may be worth it where the next one is not: a node more costs more than a GPU more.
// Pods beyond the places that a policy says would leave in the next round.
std::optional<Session::Step> Session::next_step(std::size_t index, Gpus most) const {
  const Entry& entry = entries_[index];
  const Job& job = *entry.job;
  if (!may_grow(entry) || places_of(entry) != nullptr) return std::nullopt;
  const auto next = size_at_least(job, entry.now + 1);
  const Gpus room = std::min(room_for(entry), most - entry.now);
  if (!next || room < *next - entry.now) return std::nullopt;
  const Throughput speed = speed_of(entry);
  const double now = speed.at(entry.now);
  std::optional<Step> best;
  const auto look_at = [&](Gpus to) {
    const double then = speed.at(to);
    if (to - entry.now > room || then - now < config_.min_relative_gain * now) return;
    const double per_gpu = (then - now) / static_cast<double>(to - entry.now);
    const Step step{job.weight * per_gpu / speed.at(std::max<Gpus>(job.min, 1)), index, to};
    if (!best || step.gain > best->gain) best = step;
  };
  look_at(*next);
  for (const ThroughputPoint& point : job.measured)
    if (point.gpus > *next && size_at_most(job, point.gpus) == point.gpus) look_at(point.gpus);
  return best;
}

// What is left over: one size step at a time to the job that gains most from it. Where that does
// not fit, a smaller one may.
void Session::grow() {
  std::priority_queue<Step> steps;
  const auto push = [&](std::size_t index, Gpus most) {
    if (const auto step = next_step(index, most)) steps.push(*step);
  };
  const auto max_of = [&](std::size_t index) { return entries_[index].job->max; };
  for (std::size_t i = 0; i < entries_.size(); ++i) push(i, max_of(i));
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const bool has_grown = grow_to(entries_[step.entry], step.to);
    push(step.entry, has_grown ? max_of(step.entry) : step.to - 1);
  }
}

// False: it does not fit (then neither would a larger size), or the round has grown enough jobs.
bool Session::grow_to(Entry& entry, Gpus to) {
  const bool is_disturbed = entry.job->started && entry.add.empty();
  if (is_disturbed && grown_ >= config_.grown_per_round) return false;
  // Of pods of another size than its present ones none may fit in between.
  if (to - entry.now < entry.job->per_pod.gpus) return false;
  if (!place_up_to(entry, to)) return false;
  if (is_disturbed) ++grown_;
  if (!entry.cause) entry.cause = FreeGpusHelp{};
  return true;
}

Plan Session::collect() {
  Plan plan;
  for (Entry& entry : entries_) {
    if (entry.add.empty() && entry.remove.empty()) continue;
    Action action{.kind = kind_of(entry), .job = entry.job->id, .remove = std::move(entry.remove)};
    if (entry.host != nullptr) action.shares_with = entry.host->job->id;
    CHECK(entry.cause.has_value());
    action.cause = std::move(*entry.cause);
    action.add.reserve(entry.add.size());
    entry.cells.resize(entry.add.size());
    for (std::size_t i = 0; i < entry.add.size(); ++i) {
      const Node& node = problem_.node(entry.add[i]);
      action.add.push_back(
          {node.id, node.gpu_type, entry.job->per_pod.gpus, std::move(entry.cells[i])});
    }
    std::sort(action.remove.begin(), action.remove.end());
    plan.actions.push_back(std::move(action));
  }
  // Releases before takes: the sooner a pod is told, the sooner its GPUs are free.
  std::stable_partition(plan.actions.begin(), plan.actions.end(),
                        [](const Action& a) { return !a.remove.empty(); });
  plan.verdicts = std::move(verdicts_);
  plan.refused_cells = cells_.refusals();
  return plan;
}

ActionKind Session::kind_of(const Entry& entry) {
  if (entry.preempted) return ActionKind::kPreempt;
  if (!entry.job->started) return ActionKind::kStart;
  const bool is_replaced = !entry.add.empty() && !entry.remove.empty();
  if (entry.repaired || is_replaced) return ActionKind::kRepair;
  return entry.remove.empty() ? ActionKind::kGrow : ActionKind::kShrink;
}

// False: it does not fit, and nothing is placed.
bool Session::place_up_to(Entry& entry, Gpus size) {
  const Gpus per_pod = entry.job->per_pod.gpus;
  auto placed = missing_places(entry);
  if (placed && std::ssize(*placed) != (size - entry.now) / per_pod) placed.reset();
  if (!placed && waits_for_places(entry)) return false;
  if (!placed && !set_aside_.empty()) {
    placed = place_apart(entry, (size - entry.now) / per_pod);
    if (placed) return put(entry, *placed);
  }
  if (placed)
    for (const NodeIndex n : *placed) free_.take(n, entry.job->per_pod);
  else
    placed = placer_.place(entry.index, (size - entry.now) / per_pod, bound_of(entry));
  return placed && put(entry, *placed);
}

// What is taken of free_ already.
bool Session::put(Entry& entry, const std::vector<NodeIndex>& nodes) {
  if (entry.add.empty()) count_lasting_started(entry, problem_.type_of(nodes.front()));
  for (const NodeIndex n : nodes) {
    entry.add.push_back(n);
    entry.now += entry.job->per_pod.gpus;
    quota_.take(queue_of(entry), problem_.type_of(n), entry.job->per_pod.gpus);
  }
  return true;
}

void Session::verdict(Entry& entry, Verdict verdict) {
  entry.blocked = entry.blocked || verdict.outcome != Outcome::kPlaced;
  entry.has_verdict = true;
  verdicts_[entry.index.value] = std::move(verdict);
}

}  // namespace rubato::sched
