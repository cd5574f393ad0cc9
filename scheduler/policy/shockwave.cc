#include "scheduler/policy/shockwave.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/rounds.h"
#include "scheduler/policy/shockwave_window.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

constexpr double kLeastLeftSeconds = 1;
constexpr double kIdleShare = 1e-6;  // below every part that is planned

WindowJob window_job_of(const Problem& problem, const RoundClaim& claim, TimeMs round_ms) {
  const Job& job = problem.job(claim.job);
  const double done_s =
      static_cast<double>(job.attained_gpu_ms) / 1000 / static_cast<double>(claim.gpus);
  const double left_s = job.remaining_ms ? static_cast<double>(*job.remaining_ms) / 1000
                                         : std::max(done_s, static_cast<double>(round_ms) / 1000);
  const double age_s = static_cast<double>(problem.state().now_ms) / 1000 - job.queued_at;
  return {.weight = job.weight,
          .gpus = static_cast<double>(claim.gpus),
          .done_s = done_s,
          .left_s = std::max(left_s, kLeastLeftSeconds),
          .age_s = std::max(age_s, 0.0)};
}

// By job; the greatest goes first: who is late, then by the part of the window; those without one
// by the time left.
std::vector<double> turns_of(const std::vector<WindowJob>& jobs, const WindowPlan& plan) {
  double most_left_s = kLeastLeftSeconds;
  for (const WindowJob& job : jobs) most_left_s = std::max(most_left_s, job.left_s);
  std::vector<double> turns;
  turns.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i)
    turns.push_back(plan.part[i] > kIdleShare ? plan.part[i] + (plan.late[i] != 0 ? 1 : 0)
                                              : kIdleShare * jobs[i].left_s / most_left_s);
  return turns;
}

}  // namespace

Descriptor Shockwave::describe() {
  return {
      .name = "shockwave",
      .about = "a market over a window of rounds: progress, makespan and fair finish times",
      .rule =
          "In each round a window of windowRounds rounds is planned by a linear program. It "
          "maximises the sum of the logarithms of all jobs' progress at its end, less "
          "longestWeight times the longest time that any job has left then, such that each job "
          "can be done within rho times what it would take on its equal share. Where that cannot "
          "be kept for all, those who are late count as much more as they are late, to the power "
          "of lambda. Those with the largest part of the window run now, first who is late; GPUs "
          "that are left go to jobs with most time left. Jobs have the size of their minimum.",
      .choose =
          "Where jobs are not elastic, their work is known (stop.steps), and both fair finish "
          "times and an early end of the last job count more than the mean completion time. Each "
          "turn costs a restart. Turns change in the first sixth of a round: spec.roundSeconds "
          "must be well below that.",
      .source =
          "Zheng et al., NSDI'23, and its artifact. *Reconstruction*: parts of the window stand "
          "for whole rounds, fair times are those of the moment, and batch sizes that change are "
          "not predicted; its published results are *unverified* here",
      .parameters = {{.name = "roundSeconds",
                      .least = 6,
                      .most = 86'400,
                      .standard = 120,
                      .unit = "s",
                      .about = "how long a turn lasts"},
                     {.name = "windowRounds",
                      .least = 1,
                      .most = 1000,
                      .standard = 20,
                      .about = "how many rounds are planned",
                      .is_whole = true},
                     {.name = "longestWeight",
                      .least = 0,
                      .most = 1e5,
                      .standard = 1e-3,
                      .unit = "1/s",
                      .about = "what a second of the longest time left counts against progress"},
                     {.name = "rho",
                      .least = 0.1,
                      .most = 100,
                      .standard = 1,
                      .about = "within how many times its fair time a job should be done"},
                     {.name = "lambda",
                      .least = 0,
                      .most = 100,
                      .standard = 5,
                      .about = "how much more those count who are late"}},
      .knows = Knows::kRemaining,
      .timed = true};
}

Shockwave::Shockwave(const std::vector<double>& parameters)
    : round_ms_(std::llround(parameters.at(0) * 1000)),
      rounds_(std::floor(parameters.at(1))),
      longest_weight_(parameters.at(2)),
      rho_(parameters.at(3)),
      lambda_(parameters.at(4)) {}

Targets Shockwave::decide(const Problem& problem) const {
  const RoundClock clock = round_clock(problem.state().now_ms, round_ms_);
  RoomByType room_by_type(problem);
  std::vector<RoundClaim> claims;
  std::vector<WindowJob> jobs;
  // In an order of their own, so that the vertex does not depend on the state's.
  for (const JobIndex j : order_by(problem, [](JobIndex) { return 0; })) {
    auto claim = claim_of(problem, j, clock, room_by_type);
    if (!claim) continue;
    jobs.push_back(window_job_of(problem, *claim, round_ms_));
    claims.push_back(std::move(*claim));
  }
  Room room(problem);
  double gpus = 0;
  std::vector<TypeIndex> types;
  for (TypeIndex t; t.value < problem.count_types(); ++t) {
    types.push_back(t);
    gpus += static_cast<double>(room.left()[t]);
  }
  WindowPlan plan;
  if (!jobs.empty())
    plan = plan_window(jobs, gpus,
                       {.window_s = rounds_ * static_cast<double>(round_ms_) / 1000,
                        .longest_weight = longest_weight_,
                        .rho = rho_,
                        .lambda = lambda_});
  const std::vector<double> turns = turns_of(jobs, plan);
  for (std::size_t i = 0; i < claims.size(); ++i) claims[i].share.assign(types.size(), turns[i]);
  Targets targets = leases_of(problem, claims, room, types);
  targets.displaces = clock.is_changing ? Displaces::kLaterInOrder : Displaces::kLowerPriority;
  targets.types_hold = true;
  return targets;
}

std::optional<TimeMs> Shockwave::next_wake(const ClusterState& state) const {
  return round_clock(state.now_ms, round_ms_).next_ms;
}

}  // namespace rubato::sched
