#include "scheduler/forecast.h"

#include "common/check.h"
#include "scheduler/model/sharing.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr TimeMs kFarthest = TimeMs{1} << 36;  // two years: what is held until then fits 64 bits
constexpr TimeMs kNoEnd = std::numeric_limits<TimeMs>::max();

class Replay {
 public:
  Replay(const ClusterState& state, const PolicyConfig& config)
      : state_(state), config_(config), starts_(state.jobs.size()) {
    auto policy = make_policy(config.policy, config.parameters);
    CHECK(policy.ok());
    policy_ = std::move(*policy);
    for (Node& node : state_.nodes) nodes_[node.id] = &node;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i) positions_.push_back(i);
  }

  // `sought`: of that one, and of those that start no later.
  std::vector<std::optional<TimeMs>> run(int plans_most, std::optional<std::size_t> sought = {}) {
    for (int plans = 0; plans < plans_most; ++plans) {
      const Plan plan = make_plan(state_, *policy_, config_);
      if (note(plan) || (sought && starts_[*sought]) || starts_unknown(plan)) break;
      apply(plan);
      if (!release_leavers() && !go_to_next_end(plan)) break;
    }
    return std::move(starts_);
  }

 private:
  // Of what comes after the start of a job that may end at any time, nothing is known.
  bool starts_unknown(const Plan& plan) const {
    return std::ranges::any_of(plan.actions, [&](const Action& action) {
      return action.kind == ActionKind::kStart &&
             !std::ranges::find(state_.jobs, action.job, &Job::id)->remaining_ms;
    });
  }

  // Do all that can ever start have a start now?
  bool note(const Plan& plan) {
    bool is_all = true;
    for (std::size_t i = 0; i < plan.verdicts.size(); ++i) {
      std::optional<TimeMs>& start = starts_[positions_[i]];
      if (plan.verdicts[i].outcome == Outcome::kPlaced && !start) start = passed_;
      is_all = is_all && (start || plan.verdicts[i].outcome == Outcome::kNever);
    }
    return is_all;
  }

  void apply(const Plan& plan) {
    std::unordered_map<JobId, Job*> jobs;
    for (Job& job : state_.jobs) jobs[job.id] = &job;
    for (const Action& action : plan.actions) {
      Job& job = *jobs.at(action.job);
      std::int64_t next = 0;
      for (const Held& held : job.held) next = std::max(next, held.ordinal + 1);
      const auto is_removed = [&](const Held& held) {
        return std::ranges::find(action.remove, held.ordinal) != action.remove.end();
      };
      std::erase_if(job.held, [&](const Held& held) { return held.lost && is_removed(held); });
      for (Held& held : job.held) held.leaving = held.leaving || is_removed(held);
      if (action.kind == ActionKind::kStart) job.guest_of = action.shares_with;
      for (const Placement& placement : action.add) {
        nodes_.at(placement.node)->free -= taken_by_pod(job);
        job.held.push_back({.ordinal = next++,
                            .node = placement.node,
                            .gpu_type = placement.gpu_type,
                            .gpus = placement.gpus,
                            .cell = placement.cell});
      }
      if (!job.started) job.allocated_ms = job.running_since_ms = state_.now_ms;
      job.started = effective_gpus(job) > 0;
      if (!job.started) job.allocated_ms = job.running_since_ms = -1;
    }
  }

  // False: there were none.
  bool release_leavers() {
    bool is_any = false;
    for (Job& job : state_.jobs) {
      job.settled = true;
      is_any = std::erase_if(job.held,
                             [&](const Held& held) {
                               if (held.leaving) release(held, taken_by_pod(job));
                               return held.leaving;
                             }) > 0 ||
               is_any;
    }
    return is_any;
  }

  void release(const Held& held, const Resources& what) {
    const auto node = nodes_.find(held.node);
    if (node != nodes_.end() && held.gives_room()) node->second->free += what;
  }

  void end(const Job& job) {
    const std::vector<Resources> freed = freed_by_end(job, state_.jobs);
    for (std::size_t i = 0; i < freed.size(); ++i) release(job.held[i], freed[i]);
  }

  // … or, before that and where one waits for it, from when on another job may be stopped. False:
  // nothing more is known to end.
  bool go_to_next_end(const Plan& plan) {
    const bool waits_for_least_times = std::ranges::any_of(plan.verdicts, [](const Verdict& one) {
      return one.reason == Reason::kOthersNotPreemptible && one.until_ms;
    });
    std::vector<TimeMs> ends;
    ends.reserve(state_.jobs.size());
    TimeMs passing = kNoEnd;
    for (const Job& job : state_.jobs) {
      ends.push_back(end_of(job));
      passing = std::min(passing, ends.back());
      if (waits_for_least_times) passing = std::min(passing, preemptible_in(job));
    }
    if (passing == kNoEnd) return false;
    passed_ += passing;
    state_.now_ms += passing;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i)
      if (ends[i] == passing) end(state_.jobs[i]);
    std::vector<Job> rest;
    std::vector<std::size_t> positions;
    for (std::size_t i = 0; i < state_.jobs.size(); ++i) {
      Job& job = state_.jobs[i];
      if (ends[i] == passing) continue;
      work(job, passing);
      rest.push_back(std::move(job));
      positions.push_back(positions_[i]);
    }
    state_.jobs = std::move(rest);
    positions_ = std::move(positions);
    return true;
  }

  // From now on, at what it holds.
  static TimeMs end_of(const Job& job) {
    if (!job.remaining_ms || effective_gpus(job) < job.min) return kNoEnd;
    const double pace = pace_of(job);
    if (pace <= 0) return kNoEnd;
    const double ms = std::ceil(static_cast<double>(*job.remaining_ms) / pace);
    return ms <= static_cast<double>(kFarthest) ? static_cast<TimeMs>(ms) : kNoEnd;
  }

  // Of one that is not to be stopped until it has run for its least time.
  TimeMs preemptible_in(const Job& job) const {
    if (!job.preemptible || !job.runs_on(state_.now_ms)) return kNoEnd;
    const TimeMs ms = job.min_run_ms - (state_.now_ms - job.running_since_ms);
    return ms <= kFarthest ? ms : kNoEnd;
  }

  void work(Job& job, TimeMs passing) {
    const Gpus gpus = effective_gpus(job);
    job.cooling = false;
    job.attained_gpu_ms += gpus * passing;
    if (!job.remaining_ms || gpus < job.min) return;
    const auto left = static_cast<double>(*job.remaining_ms);
    const double done = std::min(static_cast<double>(passing) * pace_of(job), left);
    job.remaining_ms = static_cast<TimeMs>(left - done);
  }

  // How many times as fast as at its minimum; 0: not known.
  static double pace_of(const Job& job) {
    const auto pod = std::ranges::find_if(job.held, [](const Held& held) { return !held.lost; });
    const Throughput speed(job.measured, pod == job.held.end() ? "" : pod->gpu_type);
    const double least = speed.at(job.min);
    const double pace = least > 0 ? speed.at(effective_gpus(job)) / least : 0;
    return std::isfinite(pace) ? pace : 0;
  }

  ClusterState state_;
  const PolicyConfig& config_;
  std::unique_ptr<Policy> policy_;
  std::unordered_map<NodeId, Node*> nodes_;
  std::vector<std::size_t> positions_;  // in the first state, of the jobs that are left
  TimeMs passed_ = 0;
  std::vector<std::optional<TimeMs>> starts_;
};

}  // namespace

std::string in_about(TimeMs ms) {
  constexpr TimeMs kMinute = 60'000;
  constexpr TimeMs kHour = 60 * kMinute;
  const auto rounded = [&](TimeMs unit) { return (ms + unit / 2) / unit; };
  if (ms < kMinute) return "in less than a minute";
  if (ms < 2 * kHour) return fmt::format("in about {} min", rounded(kMinute));
  if (ms < 48 * kHour) return fmt::format("in about {} h", rounded(kHour));
  return fmt::format("in about {} days", rounded(24 * kHour));
}

std::vector<std::optional<TimeMs>> expected_starts(const ClusterState& state,
                                                   const PolicyConfig& config, int plans_most) {
  return Replay(state, config).run(plans_most);
}

std::optional<TimeMs> expected_start(const ClusterState& state, const PolicyConfig& config,
                                     std::size_t job) {
  return Replay(state, config).run(kForecastPlansMost, job)[job];
}

}  // namespace rubato::sched
