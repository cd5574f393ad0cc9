#include "scheduler/policy/gavel.h"

#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/perf/type_ratios.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/rounds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr double kLeastWeight = 1e-9;
constexpr double kLeastSeconds = 1;  // of work left

// A job that takes part in a round.
struct Player {
  JobIndex index;
  const Job* job = nullptr;
  Gpus gpus = 0;
  std::optional<TypeIndex> holds;
  std::vector<char> can_use;  // by type
  ByGpuType speed;            // by type; 0: not measured there
};

// Which types have room for the whole job, if nobody else were there.
std::vector<char> usable_types(const Problem& problem, JobIndex j, Gpus gpus, RoomByType& room) {
  std::vector<char> usable(problem.count_types(), 0);
  for (const auto& [type, most] : problem.group(j).capacity_now.by_type())
    usable[type.value] = most >= gpus && room.may_choose(j, type) ? 1 : 0;
  return usable;
}

std::optional<Player> player_of(const Problem& problem, JobIndex j, RoomByType& room) {
  const Job& job = problem.job(j);
  const auto gpus = size_at_least(job, job.min);
  if (!problem.takes_part(j) || !gpus) return std::nullopt;
  Player player{.index = j, .job = &job, .gpus = *gpus};
  player.can_use = usable_types(problem, j, *gpus, room);
  if (effective_gpus(job) >= job.min) player.holds = problem.type_held(j);
  if (std::ranges::count(player.can_use, 0) == std::ssize(player.can_use)) return std::nullopt;
  for (TypeIndex t; t.value < problem.count_types(); ++t) {
    const Throughput speed(job.measured, problem.name(t));
    player.speed.push_back(speed.is_measured() ? speed.at(*gpus) : 0);
  }
  return player;
}

// In an order of their own, so that the vertex does not depend on the state's.
std::vector<Player> players_of(const Problem& problem) {
  RoomByType room(problem);
  std::vector<Player> players;
  for (const JobIndex j : order_by(problem, [](JobIndex) { return 0; }))
    if (auto player = player_of(problem, j, room)) players.push_back(std::move(*player));
  return players;
}

// On the types that it can use.
ByGpuType speeds_of(const Player& player, const TypeRatios& ratios) {
  ByGpuType speeds = ratios.speeds_of(player.speed);
  for (std::size_t t = 0; t < speeds.size(); ++t)
    if (player.can_use[t] == 0) speeds[t] = 0;
  return speeds;
}

// Work that is not known is guessed to be as much again as was done.
ShareJob share_job_of(const Problem& problem, const Player& player, ByGpuType speed,
                      TimeMs round_ms) {
  const Job& job = *player.job;
  const double fastest = std::ranges::max(speed);
  double done = 0;
  for (const auto& [name, gpu_ms] : job.attained_by_type)
    if (const auto type = problem.find_type(name))
      done += static_cast<double>(gpu_ms) / 1000 / static_cast<double>(player.gpus) *
              speed[type->value];
  const double left =
      job.remaining_ms
          ? std::max(static_cast<double>(*job.remaining_ms) / 1000, kLeastSeconds) * fastest
          : std::max(done, static_cast<double>(round_ms) / 1000 * fastest);
  const double age_s = static_cast<double>(problem.state().now_ms) / 1000 - job.queued_at;
  return {.weight = std::max(job.weight, kLeastWeight),
          .gpus = static_cast<double>(player.gpus),
          .speed = std::move(speed),
          .done = done,
          .left = left,
          .age_s = std::max(age_s, 0.0)};
}

constexpr const char* kRule =
    "Each job should have a share of its time on each GPU type, such that the objective is best. "
    "In "
    "rounds, the job that is furthest behind its share of a type has the next turn there, the "
    "fastest type first; who runs on another type is stopped and starts there. Jobs have the size "
    "of their minimum.";
constexpr const char* kCost =
    "Each turn costs a restart; speeds have to be measured, and those on types that a job has not "
    "seen are guessed. Turns change in the first sixth of a round: spec.roundSeconds must be well "
    "below that.";
constexpr const char* kSource =
    "Narayanan et al., OSDI'20, sections 4 and 5. *Reconstruction*: without space sharing and "
    "hierarchies; what a job has received counts over its whole life. Its published results are "
    "*unverified* here";

Parameter objective(double most, std::string about) {
  return {.name = "objective", .most = most, .about = std::move(about), .is_whole = true};
}

Parameter round_length() {
  return {.name = "roundSeconds",
          .least = 6,
          .most = 86'400,
          .standard = 360,
          .unit = "s",
          .about = "how long a turn lasts"};
}

// By how fast jobs are there, relative to where each is fastest.
std::vector<TypeIndex> fastest_first(const std::vector<ShareJob>& jobs, std::size_t types) {
  std::vector<double> speed(types, 0);
  for (const ShareJob& job : jobs) {
    const double fastest = std::ranges::max(job.speed);
    for (std::size_t t = 0; t < types; ++t) speed[t] += job.speed[t] / fastest;
  }
  std::vector<TypeIndex> order;
  for (TypeIndex t; t.value < types; ++t) order.push_back(t);
  std::ranges::stable_sort(order, std::greater(), [&](TypeIndex t) { return speed[t.value]; });
  return order;
}

}  // namespace

Descriptor Gavel::describe() {
  return {
      .name = "gavel",
      .about = "shares of GPU types by a linear program, turned into leases of a round",
      .rule = fmt::format(
          "{} Objective 0, max-min fairness: the least of all jobs' throughputs is as high as it "
          "can be, relative to an equal share of all types and to the job's GPUs and weight. 1: "
          "the same, and those whom the least does not bind rise further. 2: the most throughput "
          "in all. 3: an equal split of the cluster, by no program.",
          kRule),
      .choose = fmt::format(
          "Where there are GPU types of different speed, and jobs that gain differently by the "
          "fast ones. With one type it is fair sharing by turns. {}",
          kCost),
      .source = kSource,
      .parameters = {objective(3, "0 max-min, 1 max-min filled up, 2 throughput, 3 equal split"),
                     round_length()},
      .timed = true,
      .uses_throughput = true};
}

Descriptor GavelFinish::describe() {
  return {
      .name = "gavelFinish",
      .about = "as gavel, by when jobs will be done",
      .rule = fmt::format(
          "{} Objective 0, finish-time fairness: the largest ratio of a job's time in the cluster "
          "to its time in an equal split of it is as small as it can be. 1: the last job is done "
          "as early as it can be.",
          kRule),
      .choose = fmt::format(
          "As gavel, where the work left is known (stop.steps): what is not known is guessed to be "
          "as much again as was done. {}",
          kCost),
      .source = kSource,
      .parameters = {objective(1, "0 finish-time fairness, 1 makespan"), round_length()},
      .knows = Knows::kRemaining,
      .timed = true,
      .uses_throughput = true};
}

Gavel::Gavel(const std::vector<double>& parameters)
    : Gavel(
          {ShareGoal::kMaxMin, ShareGoal::kMaxMinFilled, ShareGoal::kThroughput, ShareGoal::kEqual},
          parameters) {}

GavelFinish::GavelFinish(const std::vector<double>& parameters)
    : Gavel({ShareGoal::kFinishTime, ShareGoal::kMakespan}, parameters) {}

Gavel::Gavel(const std::vector<ShareGoal>& goals, const std::vector<double>& parameters)
    : goal_(goals.at(static_cast<std::size_t>(std::lround(parameters.at(0))))),
      round_ms_(std::llround(parameters.at(1) * 1000)) {}

Targets Gavel::decide(const Problem& problem) const {
  const RoundClock clock = round_clock(problem.state().now_ms, round_ms_);
  const std::vector<Player> players = players_of(problem);
  TypeRatios ratios(problem.count_types());
  for (const Player& player : players) ratios.add(player.speed);
  std::vector<ShareJob> jobs;
  jobs.reserve(players.size());
  for (const Player& player : players)
    jobs.push_back(share_job_of(problem, player, speeds_of(player, ratios), round_ms_));
  Room room(problem);
  ByGpuType gpus;
  for (const Gpus of_type : room.left()) gpus.push_back(static_cast<double>(of_type));
  const Shares shares = shares_of(jobs, gpus, goal_);
  std::vector<RoundClaim> claims;
  for (std::size_t i = 0; i < players.size(); ++i) {
    const Player& player = players[i];
    const bool began_in_it = player.job->allocated_ms >= clock.begin_ms;
    claims.push_back({.job = player.index,
                      .gpus = player.gpus,
                      .share = shares.x[i],
                      .received = received_by_type(problem, player.index, player.gpus,
                                                   clock.begin_ms, round_ms_),
                      .can_use = player.can_use,
                      .holds = player.holds,
                      .keeps = player.holds && (!clock.is_changing || began_in_it)});
  }
  Targets targets = leases_of(problem, claims, room, fastest_first(jobs, problem.count_types()));
  targets.displaces = clock.is_changing ? Displaces::kLaterInOrder : Displaces::kLowerPriority;
  targets.types_hold = true;
  return targets;
}

std::optional<TimeMs> Gavel::next_wake(const ClusterState& state) const {
  return round_clock(state.now_ms, round_ms_).next_ms;
}

}  // namespace rubato::sched
