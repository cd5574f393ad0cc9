#include "scheduler/policy/chronus.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/rounds.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

struct Promise {
  std::size_t claim = 0;
  Gpus gpus = 0;
  std::int64_t must = 0;      // leases that it needs until then
  std::int64_t needs = 0;     // … and with those that it could have beyond the horizon
  std::int64_t deadline = 0;  // in leases from now on, the horizon at most
  bool has_started = false;
  bool runs_now = false;  // in the first lease, where all are kept
};

// Plans all into leases, in order: what each must have, and then what more it needs, as far as that
// is left. False: one is late.
bool plan_all(std::vector<Promise>& promises, Gpus gpus) {
  std::int64_t end = 0;
  for (const Promise& one : promises) end = std::max(end, one.deadline);
  std::vector<Gpus> free(static_cast<std::size_t>(end), gpus);
  std::vector<std::vector<char>> has(promises.size());  // not 0: it has that lease
  for (const bool all : {false, true}) {
    for (std::size_t i = 0; i < promises.size(); ++i) {
      Promise& one = promises[i];
      has[i].resize(free.size(), 0);
      std::int64_t wants = all ? one.needs - one.must : one.must;
      for (std::size_t lease = 0; std::cmp_less(lease, one.deadline) && wants > 0; ++lease) {
        if (has[i][lease] != 0 || free[lease] < one.gpus) continue;
        free[lease] -= one.gpus;
        has[i][lease] = 1;
        --wants;
      }
      if (!all && wants > 0) return false;
      one.runs_now = !has[i].empty() && has[i].front() != 0;
    }
  }
  return true;
}

// Those that can be kept, the nearest deadline first.
std::vector<Promise> kept(const std::vector<Promise>& asked, Gpus gpus) {
  std::vector<Promise> promises;
  for (const Promise& one : asked) {
    promises.push_back(one);
    while (!plan_all(promises, gpus)) {
      const auto costs = [](const Promise& p) {
        return std::tuple(p.must > 0, !p.has_started, p.gpus * p.must);
      };
      promises.erase(std::ranges::max_element(promises, {}, costs));
    }
  }
  plan_all(promises, gpus);
  return promises;
}

std::vector<Promise> asked_for(const Problem& problem, const std::vector<RoundClaim>& claims,
                               TimeMs lease_ms) {
  const TimeMs now_ms = problem.state().now_ms;
  std::vector<std::size_t> asking;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Job& job = problem.job(claims[i].job);
    if (!job.deadline_ms || !job.remaining_ms || *job.deadline_ms <= now_ms) continue;
    asking.push_back(i);
  }
  std::ranges::stable_sort(asking, {},
                           [&](std::size_t i) { return *problem.job(claims[i].job).deadline_ms; });
  if (asking.size() > Chronus::kDeadlinesMost) asking.resize(Chronus::kDeadlinesMost);
  std::vector<Promise> promises;
  promises.reserve(asking.size());
  for (const std::size_t i : asking) {
    const Job& job = problem.job(claims[i].job);
    const std::int64_t needs = std::max<TimeMs>((*job.remaining_ms + lease_ms - 1) / lease_ms, 1);
    const std::int64_t deadline = (*job.deadline_ms - now_ms) / lease_ms;
    const std::int64_t beyond = std::max<std::int64_t>(deadline - Chronus::kLeasesMost, 0);
    promises.push_back({.claim = i,
                        .gpus = claims[i].gpus,
                        .must = std::max<std::int64_t>(needs - beyond, 0),
                        .needs = needs,
                        .deadline = deadline - beyond,
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
