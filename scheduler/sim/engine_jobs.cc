// What happens to a job: it gets and loses pods, starts, stalls, trains, ends.
#include "common/words.h"
#include "scheduler/sim/engine.h"
#include "scheduler/sim/results.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

// Whose GPUs change so often while it does so small a part of its work would never end.
constexpr std::int64_t kParts = 1000;
constexpr std::int64_t kChangesPerPart = 10'000;
// At one speed. A hundredth more than what a trace may say, for speeds are rounded.
constexpr auto kTrainingMsMost = static_cast<TimeMs>(kJobSecondsMost * 1010);

void clear_allocation(Job& job) {
  job.allocated_ms = -1;
  job.started = false;
  job.settled = true;
  job.cooling = false;
}

}  // namespace

void Engine::push(EventKind kind, std::size_t index, TimeMs at_ms) {
  events_.push({.at_ms = at_ms,
                .order = made_++,
                .kind = kind,
                .job = static_cast<std::uint32_t>(index),
                .version = runs_[index].version});
}

Status Engine::apply(const Plan& plan) {
  for (const Action& action : plan.actions)
    if (const Status done = apply(action); !done.ok())
      return done.error().in(fmt::format("policy {}, {} of job {} at {} ms", about_.name,
                                         name_of(action.kind), action.job, now_));
  for (const Action& action : plan.actions)
    if (const Run& run = runs_[index_of_.at(action.job)]; run.held == 0 && !run.guests.empty())
      return Error(Code::kInternal,
                   fmt::format("policy {} stops job {} at {} ms, and not its guest", about_.name,
                               action.job, now_));
  return ok();
}

Status Engine::apply(const Action& action) {
  const auto found = index_of_.find(action.job);
  if (found == index_of_.end() || runs_[found->second].phase == Phase::kAbsent ||
      runs_[found->second].phase == Phase::kDone)
    return Error(Code::kInternal, "there is no such job");
  const std::size_t index = found->second;
  Run& run = runs_[index];
  advance(index);
  const Gpus before = run.held;
  TRY_OK(remove_pods(index, action.remove));
  const Gpus removed = before - run.held;
  if (!action.shares_with.empty()) TRY_OK(become_guest(index, action));
  TRY_OK(add_pods(index, action.add));
  const Gpus added = run.held - before + removed;
  Job& job = job_of(index);
  if ((removed > 0 || added > 0) && run.held != 0 && (run.held < job.min || run.held > job.max))
    return Error(Code::kInternal,
                 fmt::format("{} GPUs are not between {} and {}", run.held, job.min, job.max));
  if (before == 0 && run.held > 0) ++running_;
  if (before > 0 && run.held == 0) --running_;
  if (run.held >= job.min) run.gives_up_ms = -1;
  if (removed == 0 && added == 0) {
    if (run.held == 0) clear_allocation(job);  // all its pods were lost
    return ok();
  }
  change_pace(index, removed, added);
  return run.held > 0 ? count_change(index) : ok();
}

Status Engine::count_change(std::size_t index) {
  Run& run = runs_[index];
  const std::int64_t part = run.left / (run.total / kParts + 1);
  if (part < run.part_left) {
    run.part_left = part;
    run.changes = 0;
  }
  if (++run.changes <= kChangesPerPart) return ok();
  return without_progress(
      fmt::format("it makes no progress: its GPUs have changed {} times while it did less than a "
                  "thousandth of its work",
                  kChangesPerPart));
}

Status Engine::remove_pods(std::size_t index, const std::vector<std::int64_t>& ordinals) {
  Run& run = runs_[index];
  for (const std::int64_t ordinal : ordinals) {
    std::vector<Held>& held = job_of(index).held;
    const auto pod = std::find_if(held.begin(), held.end(), [&](const Held& h) {
      return h.ordinal == ordinal && !h.leaving;
    });
    if (pod == held.end())
      return Error(Code::kInternal, fmt::format("it holds no pod {}", ordinal));
    if (pod->lost) {
      held.erase(pod);
      continue;
    }
    run.held -= pod->gpus;
    release(index, *pod);
    pod->leaving = true;
    if (options_.costs.release_ms == 0 || run.host) held.erase(pod);
  }
  return ok();
}

// Its GPUs come free, at once or later. The time until then is charged now.
void Engine::release(std::size_t index, const Held& held) {
  if (runs_[index].host) return;
  const std::size_t node = node_of_.at(held.node);
  const TimeMs release_ms = options_.costs.release_ms;
  if (release_ms == 0) {
    state_.nodes[node].free.gpus += held.gpus;
    held_ -= held.gpus;
    result_.freed_ms = now_;
    freed_at_once_ = true;
    return;
  }
  result_.jobs[index].gpu_ms += held.gpus * release_ms;
  events_.push({.at_ms = now_ + release_ms,
                .order = made_++,
                .kind = EventKind::kReleased,
                .job = static_cast<std::uint32_t>(index),
                .node = node,
                .gpus = held.gpus,
                .ordinal = held.ordinal});
}

Status Engine::add_pods(std::size_t index, const std::vector<Placement>& add) {
  Run& run = runs_[index];
  Job& job = job_of(index);
  for (const Placement& placement : add) {
    const auto found = node_of_.find(placement.node);
    if (found == node_of_.end() || placement.gpus <= 0)
      return Error(Code::kInternal, fmt::format("no pod can be on node {}", placement.node));
    const std::size_t type = type_of_node_[found->second];
    if (run.held > 0 && run.type != type)
      return Error(Code::kInternal, "its GPUs would be of two types");
    if (std::find(job.allow.begin(), job.allow.end(), types_[type]) == job.allow.end())
      return Error(Code::kInternal, fmt::format("it may not use {}", types_[type]));
    Node& node = state_.nodes[found->second];
    if (!node.schedulable)
      return Error(Code::kInternal, fmt::format("node {} is {}", node.id, node.why_not));
    if (!run.host && node.free.gpus < placement.gpus)
      return Error(Code::kInternal, fmt::format("node {} has {} GPUs free, not {}", node.id,
                                                node.free.gpus, placement.gpus));
    if (!run.host) {
      node.free.gpus -= placement.gpus;
      held_ += placement.gpus;
    }
    run.held += placement.gpus;
    run.type = type;
    job.held.push_back({.ordinal = run.next_ordinal++,
                        .node = node.id,
                        .gpu_type = types_[type],
                        .gpus = placement.gpus,
                        .cell = placement.cell});
  }
  return ok();
}

// What a changed set of GPUs means for its progress. All events of the job are made anew.
void Engine::change_pace(std::size_t index, Gpus removed, Gpus added) {
  Run& run = runs_[index];
  const bool was_running = run.held - added + removed > 0;
  ++run.version;
  if (run.held == 0) return stop(index);
  if (!was_running) return start(index);
  if (!options_.costs.in_place) save(index);
  ++result_.jobs[index].rescales;
  if (std::exchange(run.changed_ms, now_) != now_) ++job_of(index).restarts;
  const CostModel& costs = options_.costs;
  if (run.phase == Phase::kStarting) {
    run.training = run.held;  // they all start together
    if (added > 0) run.until_ms = std::max(run.until_ms, now_ + costs.start_ms);
  } else if (costs.join_ms == 0) {
    if (added > 0) job_of(index).join_ms = 0;
    run.training = run.held;
    stall(run, costs.rescale_ms);
  } else {
    run.training = std::min(run.training, run.held);
    if (added > 0) run.join_ms = now_ + costs.join_ms;
    if (run.training == run.held) run.join_ms = -1;
    if (removed > 0) stall(run, costs.rescale_ms);
  }
  Job& job = job_of(index);
  job.allocated_ms = now_;
  job.settled = !about_.elastic;  // one of fixed size may be stopped at any time
  if (added > 0 && options_.growth_pause_ms > 0) {
    job.cooling = true;
    run.cool_ms = now_ + options_.growth_pause_ms;
    push(EventKind::kCooled, index, run.cool_ms);
  }
  if (run.phase == Phase::kTraining)
    push(EventKind::kFinish, index, end_of(run));
  else if (run.phase != Phase::kParked)
    push(EventKind::kReady, index, run.until_ms);
  if (run.join_ms >= 0) push(EventKind::kJoin, index, run.join_ms);
}

// From now on nobody trains for so long, or as long as before, where that is longer.
void Engine::stall(Run& run, TimeMs stall_ms) const {
  const TimeMs until_ms = run.phase == Phase::kStalled ? run.until_ms : now_;
  run.phase = Phase::kStalled;
  run.until_ms = std::max(until_ms, now_ + stall_ms);
}

void Engine::start(std::size_t index) {
  Run& run = runs_[index];
  JobResult& result = result_.jobs[index];
  const bool is_first = result.start_ms < 0;
  if (is_first)
    result.start_ms = now_;
  else
    ++result.restarts;
  Job& job = job_of(index);
  const bool is_counted = std::exchange(run.changed_ms, now_) == now_;
  if (!is_first && !is_counted) ++job.restarts;
  job.allocated_ms = now_;
  job.started = true;
  job.settled = !about_.elastic;
  run.phase = Phase::kStarting;
  if (run.host) change_speed(*run.host);
  run.training = run.held;
  run.until_ms = now_ + (is_first ? options_.costs.start_ms : options_.costs.restart_ms);
  push(EventKind::kReady, index, run.until_ms);
}

void Engine::stop(std::size_t index) {
  save(index);
  wait_again(index);
  ++result_.jobs[index].preemptions;
}

void Engine::wait_again(std::size_t index) {
  leave_host(index);
  Run& run = runs_[index];
  run.phase = Phase::kWaiting;
  run.training = 0;
  run.join_ms = -1;
  run.gives_up_ms = -1;
  clear_allocation(job_of(index));
}

void Engine::train(std::size_t index) {
  Run& run = runs_[index];
  Job& job = job_of(index);
  if (run.phase == Phase::kStalled) job.stall_ms = options_.costs.rescale_ms;
  if (run.phase == Phase::kStarting) job.start_ms = now_ - job.allocated_ms;
  if (run.training < job.min) {  // nodes have failed
    run.phase = Phase::kParked;
    return;
  }
  run.phase = Phase::kTraining;
  if (run.adaptive) {
    job.settled = true;
    run.trained_to_ms = now_;
    if (now_ % options_.round_ms != 0) train_on(index);  // else once the round is over
    if (about_.uses_throughput && !about_.uses_goodput && !options_.profiled)
      push(EventKind::kObserve, index, now_ + options_.observe_ms);
    return;
  }
  const double speed = speed_of(trace_[index], types_[run.type], run.training) *
                       part_of_speed(index) * part_at_distance(index) * run.shares_part;
  while (speed * run.quanta_per_unit / 1000.0 < kRateLeast &&
         static_cast<double>(run.total) <= kQuantaMost / 10) {
    run.total *= 10;
    run.left *= 10;
    run.saved_left *= 10;
    run.quanta_per_unit *= 10;
  }
  const double rate =
      std::min(speed * run.quanta_per_unit / 1000.0, static_cast<double>(run.total));
  run.rate = std::max<std::int64_t>(std::llround(rate), 1);
  job.settled = run.join_ms < 0 || !about_.elastic;
  push(EventKind::kFinish, index, end_of(run));
  if (job.settled && (hears_of_speeds() || shares(run)))
    push(EventKind::kObserve, index, now_ + options_.observe_ms);
}

double Engine::speed_of(const TraceJob& job, const std::string& type, Gpus gpus) const {
  return about_.elastic ? job.speed.at(type, gpus)
                        : job.request_speed.value_or(job.speed.at(type, gpus));
}

// The first instant at which nothing is left, or at which it has trained for too long.
TimeMs Engine::end_of(const Run& run) const {
  return now_ + std::min((run.left + run.rate - 1) / run.rate, kTrainingMsMost);
}

// Brings its progress and its GPU time to this instant.
void Engine::advance(std::size_t index) {
  Run& run = runs_[index];
  const TimeMs passed = now_ - run.since_ms;
  if (passed == 0) return;
  run.since_ms = now_;
  if (run.held == 0) return;
  JobResult& result = result_.jobs[index];
  if (!run.host) result.gpu_ms += run.held * passed;
  Job& job = job_of(index);
  job.attained_gpu_ms += run.held * passed;
  job.attained_by_type[types_[run.type]] += run.held * passed;
  if (run.phase != Phase::kTraining) return;
  if (!run.host) result.training_gpu_ms += run.training * passed;
  rounds_without_progress_ = 0;
  run.left = passed >= (run.left + run.rate - 1) / run.rate ? 0 : run.left - run.rate * passed;
  count_unsaved(run, passed);
}

Status Engine::finish(std::size_t index) {
  advance(index);
  Run& run = runs_[index];
  if (run.left > 0)
    return Error(
        Code::kInvalid,
        fmt::format("policy {} at {} ms: job {} has trained for {:g} s and is not done, so "
                    "slow is it with what it has of data, CPU, memory, network and shared "
                    "GPUs; longer cannot be played",
                    about_.name, now_, readable(trace_[index].id), kJobSecondsMost));
  JobResult& result = result_.jobs[index];
  result.finish_ms = now_;
  const double jobs_beside =
      (in_system_ - run.seen_before) / static_cast<double>(std::max<TimeMs>(result.jct_ms(), 1));
  result.alone_ms = alone_ms(trace_[index], cluster_, jobs_beside, options_.costs.start_ms);
  run.phase = Phase::kDone;
  const std::vector<bool> is_handed_over = hand_over_to_guests(index);
  const std::vector<Held>& pods = job_of(index).held;
  for (std::size_t i = 0; i < pods.size(); ++i) {
    if (is_handed_over[i] || pods[i].lost) continue;
    if (!pods[i].leaving) release(index, pods[i]);
    if (options_.costs.release_ms > 0 && !run.host)
      state_.queues[result.queue].held_by_leavers[pods[i].gpu_type] += pods[i].gpus;
  }
  leave_host(index);
  run.held = 0;
  ++run.version;
  --running_;
  ++finished_;
  // The last one takes its place.
  const std::size_t last = state_.jobs.size() - 1;
  if (run.position != last) {
    state_.jobs[run.position] = std::move(state_.jobs[last]);
    index_of_job_[run.position] = index_of_job_[last];
    runs_[index_of_job_[last]].position = run.position;
  }
  state_.jobs.pop_back();
  index_of_job_.pop_back();
  return ok();
}

}  // namespace rubato::sched::sim
