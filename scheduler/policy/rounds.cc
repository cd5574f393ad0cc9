#include "scheduler/policy/rounds.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/policy/order.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace rubato::sched {
namespace {

constexpr double kNothingReceived =
    1e-9;  // stands for the part of one that has had nothing of a type

// Of one job and one type; the greatest goes first.
struct Candidate {
  std::int64_t priority = 0;
  double behind = 0;
  double share = 0;
  bool holds = false;  // among equals it is cheaper to stay
  double queued_at = 0;
  const RoundClaim* claim = nullptr;
};

bool goes_before(const Problem& problem, const Candidate& a, const Candidate& b) {
  const auto rank = [](const Candidate& c) {
    return std::tuple(-c.priority, -c.behind, -c.share, !c.holds, c.queued_at);
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return problem.job(a.claim->job).id < problem.job(b.claim->job).id;
}

double behind(const RoundClaim& claim, TypeIndex type) {
  return claim.share[type.value] / std::max(claim.received[type.value], kNothingReceived);
}

std::vector<Candidate> candidates_of(const Problem& problem, const std::vector<RoundClaim>& claims,
                                     TypeIndex type) {
  std::vector<Candidate> all;
  for (const RoundClaim& claim : claims) {
    if (claim.keeps || claim.can_use[type.value] == 0) continue;
    const Job& job = problem.job(claim.job);
    all.push_back({.priority = job.priority,
                   .behind = behind(claim, type),
                   .share = claim.share[type.value],
                   .holds = claim.holds == type,
                   .queued_at = job.queued_at,
                   .claim = &claim});
  }
  std::ranges::sort(
      all, [&](const Candidate& a, const Candidate& b) { return goes_before(problem, a, b); });
  return all;
}

constexpr TimeMs kTurnsChangeWithin = 6;  // as a divisor of a round

}  // namespace

RoundClock round_clock(TimeMs now_ms, TimeMs round_ms) {
  const TimeMs begin_ms = now_ms - now_ms % round_ms;
  return {begin_ms, begin_ms + round_ms, now_ms - begin_ms < round_ms / kTurnsChangeWithin};
}

std::optional<RoundClaim> claim_of(const Problem& problem, JobIndex j, const RoundClock& clock,
                                   RoomByType& room) {
  const Job& job = problem.job(j);
  const auto gpus = size_at_least(job, job.min);
  if (!problem.takes_part(j) || !gpus) return std::nullopt;
  RoundClaim claim{.job = j,
                   .gpus = *gpus,
                   .share = std::vector<double>(problem.count_types(), 0),
                   .received = std::vector<double>(problem.count_types(), 1),
                   .can_use = std::vector<char>(problem.count_types(), 0)};
  if (effective_gpus(job) >= job.min) claim.holds = problem.type_held(j);
  bool can_any = false;
  for (const auto& [type, most] : problem.group(j).capacity_now.by_type()) {
    if (most < *gpus || (claim.holds && claim.holds != type)) continue;
    if (!room.may_choose(j, type)) continue;
    claim.can_use[type.value] = 1;
    can_any = true;
  }
  if (!can_any) return std::nullopt;
  claim.keeps = claim.holds && (!clock.is_changing || job.allocated_ms >= clock.begin_ms);
  return claim;
}

Targets leases_of(const Problem& problem, const std::vector<RoundClaim>& claims, Room& room,
                  const std::vector<TypeIndex>& types) {
  enum class Turn { kGoesOn, kChanges, kHasOne, kHasNone };
  const std::size_t jobs = problem.state().jobs.size();
  Targets targets;
  targets.types.assign(jobs, std::nullopt);
  std::vector<std::pair<Turn, double>> turns(jobs, {Turn::kHasNone, 0});
  for (const RoundClaim& claim : claims) {
    double most = 0;
    for (const TypeIndex type : types) most = std::max(most, behind(claim, type));
    turns[claim.job.value].second = -most;
    if (!claim.keeps) continue;
    turns[claim.job.value].first = Turn::kGoesOn;
    if (claim.holds) room.take(claim.job, *claim.holds, claim.gpus);
  }
  double picked = 0;
  for (const TypeIndex type : types) {
    for (const Candidate& candidate : candidates_of(problem, claims, type)) {
      const RoundClaim& claim = *candidate.claim;
      std::optional<TypeIndex>& leased = targets.types[claim.job.value];
      if (leased || !room.take(claim.job, type, claim.gpus)) continue;
      leased = type;
      const bool changes = claim.holds && claim.holds != type;
      turns[claim.job.value] = {changes ? Turn::kChanges : Turn::kHasOne, ++picked};
    }
  }
  targets.order = order_by(problem, [&](JobIndex j) { return turns[j.value]; });
  return targets;
}

std::vector<double> received_by_type(const Problem& problem, JobIndex j, Gpus gpus, TimeMs at_ms,
                                     TimeMs least_ms) {
  const Job& job = problem.job(j);
  std::vector<double> gpu_ms(problem.count_types(), 0);
  for (const auto& [name, attained] : job.attained_by_type)
    if (const auto type = problem.find_type(name))
      gpu_ms[type->value] += static_cast<double>(attained);
  if (job.allocated_ms >= 0) {
    const TimeMs since_ms = problem.state().now_ms - std::max(job.allocated_ms, at_ms);
    for (const Held& held : job.held)
      if (held.stays())
        gpu_ms[problem.type_named(held.gpu_type).value] -=
            static_cast<double>(held.gpus * since_ms);
  }
  const double life_ms =
      std::max(static_cast<double>(at_ms) - job.queued_at * 1000, static_cast<double>(least_ms));
  for (double& part : gpu_ms) part = std::max(part, 0.0) / (static_cast<double>(gpus) * life_ms);
  return gpu_ms;
}

}  // namespace rubato::sched
