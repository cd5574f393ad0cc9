#include "scheduler/policy/rubato.h"

#include "common/check.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato_claim.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

constexpr int kPricePasses = 3;
constexpr int kPriceHalvings = 20;

// Nothing, where there is nothing to choose.
PriceTable prices_of(const Problem& problem, const ValueTable& table,
                     const Table<TypeIndex, Gpus>& capacity) {
  const std::vector<QueueLimit> limits = limits_of(problem);
  if (!limits.empty())
    return find_prices(problem, table, capacity, limits, First::kLimits, kPricePasses,
                       kPriceHalvings)
        .types;
  if (problem.count_types() == 1) return PriceTable(1, 0);
  return find_prices(table, capacity, kPricePasses, kPriceHalvings);
}

// Types of which not all jobs can keep what they hold: a node is about to go, or a limit was
// lowered. From there a job may go where it has less, so that it is not stopped later.
std::set<TypeIndex> crowded_types(const Problem& problem, Room room) {
  std::set<TypeIndex> crowded;
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    if (!problem.takes_part(j) || !job.guest_of.empty()) continue;
    for (std::size_t i = 0; i < job.held.size(); ++i) {
      const TypeIndex type = problem.held_at(j)[i].type;
      if (job.held[i].stays() && !room.take(j, type, job.held[i].gpus)) crowded.insert(type);
    }
  }
  return crowded;
}

}  // namespace

Descriptor RubatoPolicy::describe() {
  return {
      .name = "rubato",
      .about =
          "sizes and types by how fast they bring jobs to their ends, each counted by all "
          "that wait for it",
      .rule =
          "A job counts by the GPU time that it needs yet, times the part of all jobs (by weight) "
          "that wait for its end: itself, and those with more left. Sizes and GPU types maximise "
          "the rate at which that is paid off. So who is done soon with few GPUs goes first, and "
          "has more of them the faster they make it; it preempts those with more left where there "
          "is no room otherwise and what they lose by it is less. Running jobs give back, grow, "
          "and stop to start on another GPU type, where the change is worth its cost. In a cluster "
          "of one type, where goodput tables are known, jobs also move to fewer nodes, and one of "
          "which the work left is known, and that is to have nothing, stops so that another such "
          "job grows to its size. Work left is known from stop.steps and the measured throughput, "
          "and guessed from what a job has had "
          "before there is one; who has just started stays until it was measured, for a minute at "
          "most. Each plan can be given a certificate: how far it is, at most, from the best one.",
      .choose =
          "The default: where jobs are elastic, or GPU types differ, and their mean completion "
          "time counts. A job that is done before newcomers would have prepared does not grow. A "
          "long job is served late in a crowded cluster; maxWaitSeconds bounds how long it waits "
          "for its first start, and it may be preempted again after that.",
      .source =
          "Rubato; who goes first as in Smith's rule (1956), who has how many GPUs in the "
          "spirit of heSRPT (Berg et al. 2020), guesses as the queues of Tiresias (NSDI'19)",
      .parameters = {{.name = "switchingMargin",
                      .least = 0,
                      .most = 100,
                      .standard = 0.2,
                      .about = "what a job holds is worth this part more than it is, so that "
                               "equals do not take turns"},
                     {.name = "maxWaitSeconds",
                      .least = 1,
                      .most = 1e8,
                      .standard = 14'400,
                      .unit = "s",
                      .about = "a job that has waited so long for its first start comes before all "
                               "others of its priority"},
                     {.name = "prepareSeconds",
                      .least = 0,
                      .most = 86'400,
                      .standard = 30,
                      .unit = "s",
                      .about = "how long pods take from when they are made until they train, as "
                               "long as no start was measured"},
                     {.name = "stallSeconds",
                      .least = 0,
                      .most = 86'400,
                      .standard = 1,
                      .unit = "s",
                      .about =
                          "how long a whole job stands still when its GPUs change, as long as no "
                          "such change was measured"},
                     {.name = "exploration",
                      .least = 0,
                      .most = 1,
                      .standard = 0.2,
                      .about = "part of its time that a job may save on a GPU type on which all "
                               "others are slower: where such GPUs are free, one that has long to "
                               "go is stopped to try them once; 0: none is"}},
      .knows = Knows::kRemaining,
      .elastic = true,
      .timed = true,
      .uses_throughput = true,
      .uses_goodput = true};
}

RubatoPolicy::RubatoPolicy(const std::vector<double>& parameters)
    : switching_margin_(parameters.at(0)),
      max_wait_ms_(parameters.at(1) * 1000),
      prepare_ms_(parameters.at(2) * 1000),
      stall_ms_(parameters.at(3) * 1000),
      exploration_(parameters.at(4)) {}

// Whether a job that is to go to another type comes to have more by that itself: else it would go
// for the growth of others, who need not come to it, and want to go back.
bool RubatoPolicy::gains(const Claim& claim, TypeIndex type, const SizeValue& to) {
  return !claim.holds || *claim.holds == type || to.value > claim.stays;
}

// The step that is worth most a GPU; of equal ones of the type that most is left of.
std::optional<RubatoPolicy::Move> RubatoPolicy::best_move(const Claim& claim, std::size_t place,
                                                          const Room& room) {
  std::optional<Move> best;
  for (const auto& one : claim.values->types) {
    if (claim.type && *claim.type != one.type) continue;
    if (claim.first && *claim.first != one.type) continue;
    const Gpus most = std::min(claim.at_most.value_or(claim.most),
                               claim.size + room.left_for(claim.index, one.type));
    for (const SizeValue& to : claim.values->of(one)) {
      if (to.gpus <= claim.size || to.gpus > most || !gains(claim, one.type, to)) continue;
      const std::int64_t density = (to.value - claim.value) / (to.gpus - claim.size);
      if (density <= 0) continue;
      if (best && (density < best->density ||
                   (density == best->density &&
                    (best->type == one.type || room.left()[one.type] <= room.left()[best->type]))))
        continue;
      best = Move{density, place, one.type, to};
    }
  }
  return best;
}

Targets RubatoPolicy::decide(const Problem& problem) const {
  View view = look_at(problem);
  std::vector<Claim>& claims = view.claims;
  RoomByType room_by_type(problem);
  const ValueTable table = table_of(problem, view, room_by_type);
  Room room(problem);
  const std::set<TypeIndex> crowded = crowded_types(problem, room);
  for (Claim& claim : claims) {
    claim.values = &table[claim.index];
    if (claim.holds && !crowded.contains(*claim.holds)) claim.stays = value_now(claim);
    if (claim.held == 0 && room_by_type.most(claim.index) < claim.job->min) claim.most = 0;
  }
  const PriceTable prices = prices_of(problem, table, room.left());
  if (problem.count_types() > 1) choose_types(claims, room, prices);
  share_out(problem, claims, room, prices);
  const bool has_tables =
      problem.count_types() == 1 &&
      std::ranges::any_of(claims, [](const Claim& claim) { return !claim.job->goodput.empty(); });
  Targets targets{.displaces = Displaces::kLaterInOrder,
                  .sizes_are_kept = true,
                  .types_hold = problem.count_types() > 1,
                  .few_nodes_yield = true,
                  .stops_for_growth = has_tables};
  targets.order = order_by(problem, [&](JobIndex j) {
    const Claim& claim = claims[j.value];
    return std::tuple(!claim.starves, claim.size == 0, -density(claim));
  });
  for (const Claim& claim : claims) {
    targets.sizes.push_back(claim.size);
    targets.types.push_back(claim.type ? claim.type : claim.holds);
  }
  targets.starts = targets.sizes;
  if (has_tables) choose_places(problem, view, targets);
  return targets;
}

std::int64_t RubatoPolicy::value_now(const Claim& claim) {
  for (const auto& one : claim.values->types) {
    if (one.type != claim.holds) continue;
    const JobValues::List& list = claim.values->of(one);
    const auto now = std::ranges::find(list, claim.held, &SizeValue::gpus);
    if (now != list.end()) return now->value;
  }
  return 0;
}

// Value a GPU of what it gets, or else of what it would choose if it had all.
std::int64_t RubatoPolicy::density(const Claim& claim) {
  if (claim.size > 0) return claim.value / claim.size;
  std::int64_t best = 0;
  for (const JobValues::List& list : claim.values->lists)
    for (const SizeValue& one : list) best = std::max(best, one.value / one.gpus);
  return best;
}

// Who starves comes before all others of its priority.
void RubatoPolicy::share_out(const Problem& problem, std::vector<Claim>& claims, Room& room,
                             const PriceTable& prices) {
  std::map<std::pair<std::int64_t, bool>, std::vector<JobIndex>, std::greater<>> levels;
  for (const JobIndex j : order_by(problem, [&](JobIndex) { return 0; }))
    levels[{claims[j.value].job->priority, claims[j.value].starves}].push_back(j);
  for (const auto& [level, jobs] : levels) {
    fit_into_limits(problem, jobs, claims, room, prices);
    share_out(jobs, claims, room);
    bool looks_again = false;
    for (const JobIndex j : jobs) {
      looks_again |= std::exchange(claims[j.value].first, std::nullopt).has_value();
      looks_again |= std::exchange(claims[j.value].at_most, std::nullopt).has_value();
    }
    if (looks_again) share_out(jobs, claims, room);
  }
}

// A type that others need more is dear: each job looks first at the one that is worth most to it at
// its price, of sizes that its queue lets it have.
void RubatoPolicy::choose_types(std::vector<Claim>& claims, const Room& room,
                                const PriceTable& prices) {
  Table<TypeIndex, Gpus> most(prices.size(), 0);
  for (Claim& claim : claims) {
    for (TypeIndex type; type < most.end_key(); ++type)
      most[type] = std::min(claim.most, room.left_for(claim.index, type));
    const Choice choice = best_choice(*claim.values, prices, most);
    if (choice.type == nullptr) continue;
    claim.first = gains(claim, choice.type->type, choice.size) ? choice.type->type : claim.holds;
  }
}

// Always the step that is worth most a GPU. A step that was the best becomes worse only as GPUs
// run out, so it is looked at again when its turn comes.
void RubatoPolicy::share_out(const std::vector<JobIndex>& order, std::vector<Claim>& claims,
                             Room& room) {
  std::priority_queue<Move> moves;
  const auto push = [&](const std::optional<Move>& move) {
    if (move) moves.push(*move);
  };
  for (std::size_t place = 0; place < order.size(); ++place)
    push(best_move(claims[order[place].value], place, room));
  while (!moves.empty()) {
    const std::size_t place = moves.top().place;
    moves.pop();
    Claim& claim = claims[order[place].value];
    const auto now = best_move(claim, place, room);
    if (!now) continue;
    if (!moves.empty() && *now < moves.top()) {
      push(now);
      continue;
    }
    CHECK(room.take(claim.index, now->type, now->to.gpus - claim.size));
    claim.type = now->type;
    claim.size = now->to.gpus;
    claim.value = now->to.value;
    push(best_move(claim, place, room));
  }
}

}  // namespace rubato::sched
