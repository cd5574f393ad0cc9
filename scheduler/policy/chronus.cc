#include "scheduler/policy/chronus.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/rounds.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace rubato::sched {
namespace {

struct Promise {
  std::size_t claim = 0;
  Gpus gpus = 0;
  std::int64_t needs = 0;     // leases
  std::int64_t deadline = 0;  // in leases from now on
  bool has_started = false;
  bool runs_now = false;  // in the first lease, where all are kept
};

// Plans all into leases, in order. The first that is late; none: nobody is.
std::optional<std::size_t> first_late(std::vector<Promise>& promises, Gpus gpus) {
  std::int64_t end = 0;
  for (const Promise& one : promises) end = std::max(end, one.deadline);
  std::vector<Gpus> free(static_cast<std::size_t>(end), gpus);
  for (std::size_t i = 0; i < promises.size(); ++i) {
    Promise& one = promises[i];
    one.runs_now = false;
    std::int64_t needs = one.needs;
    for (std::int64_t lease = 0; lease < one.deadline && needs > 0; ++lease) {
      Gpus& left = free[static_cast<std::size_t>(lease)];
      if (left < one.gpus) continue;
      left -= one.gpus;
      --needs;
      one.runs_now = one.runs_now || lease == 0;
    }
    if (needs > 0) return i;
  }
  return std::nullopt;
}

// Those that can be kept, the nearest deadline first.
std::vector<Promise> kept(const std::vector<Promise>& asked, Gpus gpus) {
  std::vector<Promise> promises;
  for (const Promise& one : asked) {
    promises.push_back(one);
    while (first_late(promises, gpus)) {
      const auto costs = [](const Promise& p) {
        return std::tuple(!p.has_started, p.gpus * p.needs);
      };
      promises.erase(std::ranges::max_element(promises, {}, costs));
    }
  }
  first_late(promises, gpus);
  return promises;
}

std::vector<Promise> asked_for(const Problem& problem, const std::vector<RoundClaim>& claims,
                               TimeMs lease_ms) {
  const TimeMs now_ms = problem.state().now_ms;
  TimeMs last_ms = now_ms;
  std::vector<std::size_t> asking;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Job& job = problem.job(claims[i].job);
    if (!job.deadline_ms || !job.remaining_ms || *job.deadline_ms <= now_ms) continue;
    asking.push_back(i);
    last_ms = std::max(last_ms, *job.deadline_ms);
  }
  std::ranges::stable_sort(asking, {},
                           [&](std::size_t i) { return *problem.job(claims[i].job).deadline_ms; });
  if (asking.size() > Chronus::kDeadlinesMost) asking.resize(Chronus::kDeadlinesMost);
  const TimeMs slot_ms = std::max(lease_ms, (last_ms - now_ms) / Chronus::kLeasesMost + 1);
  std::vector<Promise> promises;
  promises.reserve(asking.size());
  for (const std::size_t i : asking) {
    const Job& job = problem.job(claims[i].job);
    promises.push_back({.claim = i,
                        .gpus = claims[i].gpus,
                        .needs = std::max<TimeMs>((*job.remaining_ms + slot_ms - 1) / slot_ms, 1),
                        .deadline = (*job.deadline_ms - now_ms) / slot_ms,
                        .has_started = job.attained_gpu_ms > 0});
  }
  return promises;
}

}  // namespace

Descriptor Chronus::describe() {
  return {
      .name = "chronus",
      .about = "leases: as many deadlines as can be met are promised, the rest is best effort",
      .rule =
          "Jobs hold leases of leaseSeconds, at the size of their minimum. Jobs with a deadline "
          "are planned into leases, the nearest first; where one would be late, the planned job "
          "that needs most GPU time and has not started is dropped. Those that the plan lets run "
          "now go first, then best-effort jobs and dropped ones, the least time left first, then "
          "those whose turn comes later.",
      .choose =
          "Where jobs are not elastic, some have deadlines and others do not, and as many "
          "deadlines as possible should be met. It needs deadlines (spec.objective.deadline) and "
          "the work left (stop.steps). Turns change in the first sixth of a lease: "
          "spec.roundSeconds must be well below that. Long jobs without a deadline may starve.",
      .source =
          "Gao et al., SoCC'21, as described with ElasticFlow's artifact; whom to drop by Moore "
          "(1968) and Hodgson in place of its integer program. *Reconstruction*, without its "
          "search for placements; its published results are *unverified* here",
      .parameters = {{.name = "leaseSeconds",
                      .least = 6,
                      .most = 86'400,
                      .standard = 240,
                      .unit = "s",
                      .about = "how long a lease lasts"}},
      .knows = Knows::kRemaining,
      .timed = true,
      .uses_deadlines = true};
}

Chronus::Chronus(const std::vector<double>& parameters)
    : lease_ms_(std::llround(parameters.at(0) * 1000)) {}

Targets Chronus::decide(const Problem& problem) const {
  const RoundClock clock = round_clock(problem.state().now_ms, lease_ms_);
  Room room(problem);
  Gpus gpus = 0;
  std::vector<TypeIndex> types;
  for (TypeIndex t; t.value < problem.count_types(); ++t) {
    types.push_back(t);
    gpus += room.left()[t];
  }
  RoomByType room_by_type(problem);
  std::vector<RoundClaim> claims;
  for (const JobIndex j :
       order_by(problem, [&](JobIndex j) { return problem.job(j).remaining_ms.value_or(0); }))
    if (auto claim = claim_of(problem, j, clock, room_by_type)) claims.push_back(std::move(*claim));
  // Turns from 2 on are promised now, from 1 on best effort, below promised later.
  std::vector<double> turns;
  turns.reserve(claims.size());
  const auto rank = [&](std::size_t i) {
    return 1 - static_cast<double>(i + 1) / static_cast<double>(claims.size() + 2);
  };
  for (std::size_t i = 0; i < claims.size(); ++i) turns.push_back(1 + rank(i));
  const std::vector<Promise> promises = kept(asked_for(problem, claims, lease_ms_), gpus);
  for (std::size_t k = 0; k < promises.size(); ++k)
    turns[promises[k].claim] = (promises[k].runs_now ? 2 : 0) + rank(k);
  for (std::size_t i = 0; i < claims.size(); ++i) claims[i].share.assign(types.size(), turns[i]);
  Targets targets = leases_of(problem, claims, room, types);
  targets.displaces = clock.is_changing ? Displaces::kLaterInOrder : Displaces::kLowerPriority;
  targets.types_hold = true;
  return targets;
}

std::optional<TimeMs> Chronus::next_wake(const ClusterState& state) const {
  return round_clock(state.now_ms, lease_ms_).next_ms;
}

}  // namespace rubato::sched
