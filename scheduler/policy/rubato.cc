#include "scheduler/policy/rubato.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/goodput_table.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/solver/prices.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLeastMs = 1000;  // of work left
constexpr double kFirstGuess = 600'000;
constexpr double kGuessFactor = 4;
constexpr Gpus kExplore = 4;
constexpr double kResidenceMs = 600'000;
constexpr int kPricePasses = 3;
constexpr int kPriceHalvings = 20;
constexpr double kWorthMost = 1 << 20;
// Sizes that are looked at: all small ones, then in steps of an eighth.
constexpr Gpus kEachUpTo = 64;

Gpus after(Gpus size) { return size < kEachUpTo ? size + 1 : size + size / 8; }

double work_left_ms(const Job& job) {
  if (job.remaining_ms) return std::max(static_cast<double>(*job.remaining_ms), kLeastMs);
  const double had = static_cast<double>(job.attained_gpu_ms) / static_cast<double>(job.min);
  double guess = kFirstGuess;
  while (guess < had) guess *= kGuessFactor;
  return guess;
}

// GPUs of the largest node of each type.
Table<TypeIndex, Gpus> largest_nodes(const Problem& problem) {
  Table<TypeIndex, Gpus> largest(problem.count_types());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    Gpus& of_type = largest[problem.type_of(n)];
    of_type = std::max(of_type, problem.node(n).gpus_total);
  }
  return largest;
}

}  // namespace

// A job on one type, by GPUs on as few nodes as hold them.
class RubatoPolicy::Speed {
 public:
  Speed(const Job& job, std::string_view type, Gpus of_node)
      : goodput_(job, type), of_node_(std::max<Gpus>(of_node, 1)) {}
  double at(Gpus gpus) const { return goodput_.at(gpus, (gpus + of_node_ - 1) / of_node_); }
  bool is_known() const { return goodput_.is_known(); }

 private:
  GoodputTable goodput_;
  Gpus of_node_;
};

// One job while GPUs are shared out.
struct RubatoPolicy::Claim {
  JobIndex index;
  const Job* job = nullptr;
  std::optional<TypeIndex> type;  // that it holds, or was given
  double left_ms = 0;             // at its minimum
  double service = 0;             // GPU time left, by weight: the order
  double rank_weight = 0;
  Gpus held = 0;
  Gpus most = 0;  // that is tried
  Gpus size = 0;
  std::int64_t value = 0;  // of that size
  const JobValues* values = nullptr;
  std::optional<TypeIndex> first;  // the only one that it looks at until all have had a turn
};

// To a larger size.
struct RubatoPolicy::Move {
  std::int64_t density = 0;  // value a GPU
  std::size_t place = 0;     // in order
  TypeIndex type;
  SizeValue to;
  bool operator<(const Move& other) const {
    return density != other.density ? density < other.density : place > other.place;
  }
};

Descriptor RubatoPolicy::describe() {
  return {
      .name = "rubato",
      .about = "least work left first; sizes of the greatest weighted goodput, with a certificate",
      .rule =
          "The job with the least work left, in GPU time by its weight, goes first, and preempts "
          "those with more when its minimum does not fit otherwise. Sizes maximise the weighted "
          "goodput of all jobs: a job's weight falls with the square root of its place in that "
          "order, so an empty cluster gives a job all GPUs that make it faster, a crowded one the "
          "size at which it is most efficient. Running jobs give back and grow accordingly, where "
          "the change is worth its cost. Work left is known from stop.steps and the measured "
          "throughput, and guessed from what a job has had before there is one. Each plan can be "
          "given a certificate: how far it is, at most, from the best one.",
      .choose =
          "Where jobs are elastic and their mean completion time counts. A long job is served "
          "late in a crowded cluster, but keeps its minimum once it has it unless somebody's "
          "minimum does not fit; maxWaitSeconds bounds how long it waits for that.",
      .source =
          "Rubato; order by Smith's rule (1956), weights after heSRPT (Berg et al. 2020), "
          "guesses as the queues of Tiresias (NSDI'19)",
      .parameters = {{.name = "switchingMargin",
                      .least = 0,
                      .most = 100,
                      .standard = 0.2,
                      .about = "a job that waits comes before one that runs only if the other has "
                               "this part more work left"},
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
                      .about = "how long pods that join take until they train"},
                     {.name = "stallSeconds",
                      .least = 0,
                      .most = 86'400,
                      .standard = 1,
                      .unit = "s",
                      .about = "how long a whole job stands still when its GPUs change"}},
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
      stall_ms_(parameters.at(3) * 1000) {}

std::vector<RubatoPolicy::Claim> RubatoPolicy::claims_of(const Problem& problem) const {
  std::vector<Claim> claims;
  claims.reserve(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    Claim claim{.index = j, .job = &job, .left_ms = work_left_ms(job), .held = effective_gpus(job)};
    claim.type = problem.type_held(j);
    claim.service = claim.left_ms * static_cast<double>(job.min) / std::max(job.weight, 1e-9);
    if (claim.held > 0) claim.service /= 1 + switching_margin_;
    claims.push_back(claim);
  }
  return claims;
}

std::vector<JobIndex> RubatoPolicy::order_of(const Problem& problem,
                                             std::vector<Claim>& claims) const {
  const auto now_ms = static_cast<double>(problem.state().now_ms);
  std::vector<JobIndex> order = order_by(problem, [&](JobIndex j) {
    const Job& job = problem.job(j);
    const bool starves = job.attained_gpu_ms == 0 && claims[j.value].held == 0 &&
                         now_ms - job.queued_at * 1000 > max_wait_ms_;
    return std::pair(!starves, claims[j.value].service);
  });
  const auto all = static_cast<double>(2 * order.size());
  auto own = all - 1;
  for (const JobIndex j : order) {
    claims[j.value].rank_weight = std::sqrt(own / (all - 1));
    own -= 2;
  }
  return order;
}

// Of the type that it holds, or else of all that it may have.
JobValues RubatoPolicy::values_of(const Problem& problem, const Table<TypeIndex, Gpus>& largest,
                                  const Claim& claim) const {
  const Job& job = *claim.job;
  JobValues values;
  if (is_kept_out(job)) return values;
  std::vector<TypeIndex> types;
  if (claim.type)
    types.push_back(*claim.type);
  else
    types = problem.group(claim.index).types;
  // What is known of one type, that it holds if possible, is the guess for those of which nothing
  // is.
  const auto speed_on = [&](std::string_view name) {
    const auto type = problem.find_type(name);
    return Speed(job, name, type ? largest[*type] : 1);
  };
  Speed known = speed_on(claim.type ? std::string_view(problem.name(*claim.type)) : "");
  for (const ThroughputPoint& point : job.measured)
    if (!known.is_known()) known = speed_on(point.gpu_type);
  for (const GoodputPoint& point : job.goodput)
    if (!known.is_known()) known = speed_on(point.gpu_type);
  std::optional<std::size_t> guessed;
  for (const TypeIndex type : types) {
    const Speed speed = speed_on(problem.name(type));
    if (speed.is_known()) {
      values.types.push_back({type, values.lists.size()});
      values.lists.push_back(list_of(claim, speed, known.at(job.min)));
      continue;
    }
    if (!guessed) {
      guessed = values.lists.size();
      values.lists.push_back(list_of(claim, known, known.at(job.min)));
    }
    values.types.push_back({type, *guessed});
  }
  return values;
}

JobValues::List RubatoPolicy::list_of(const Claim& claim, const Speed& speed,
                                      double at_least) const {
  const Job& job = *claim.job;
  const auto worth = [&](Gpus gpus) {
    const double now = static_cast<double>(job.min) * speed.at(gpus) / at_least;
    return now < kWorthMost ? now : kWorthMost;  // also of what is no number
  };
  // While it stays as it is: what a change costs counts over that time.
  const double held = claim.held > 0 ? worth(claim.held) : 0;
  const double stays =
      held > 0 ? std::min(claim.left_ms * static_cast<double>(job.min) / held, kResidenceMs) : 0;
  const double runs = std::min(claim.left_ms, kResidenceMs);
  const double starts = runs / (runs + prepare_ms_);
  const auto value_at = [&](Gpus gpus) {
    double now = worth(gpus);
    if (claim.held > 0 && gpus != claim.held && stays > 0) {
      const double before = gpus > claim.held ? std::min(prepare_ms_, stays) : 0;
      const double after = std::max(stays - before - stall_ms_, 0.0);
      now = (held * before + now * after) / stays;
    }
    if (claim.held == 0) now *= starts;
    return static_cast<std::int64_t>(claim.rank_weight * now * static_cast<double>(kValueOne));
  };
  std::vector<Gpus> sizes;
  const auto add = [&](std::optional<Gpus> size) {
    if (size && *size <= job.max) sizes.push_back(*size);
  };
  for (auto n = size_at_least(job, job.min); n; n = size_at_least(job, after(*n))) add(n);
  add(size_at_most(job, claim.held));
  add(size_at_most(job, job.max));
  for (const ThroughputPoint& point : job.measured) add(size_at_most(job, point.gpus));
  std::ranges::sort(sizes);
  const auto [first, last] = std::ranges::unique(sizes);
  sizes.erase(first, last);
  JobValues::List list;
  list.reserve(sizes.size());
  for (const Gpus size : sizes) list.push_back({size, value_at(size)});
  return list;
}

ValueTable RubatoPolicy::table_of(const Problem& problem, const std::vector<Claim>& claims) const {
  ValueTable table;
  table.reserve(claims.size());
  const Table<TypeIndex, Gpus> largest = largest_nodes(problem);
  for (const Claim& claim : claims) table.push_back(values_of(problem, largest, claim));
  return table;
}

std::optional<ValueTable> RubatoPolicy::values(const Problem& problem) const {
  std::vector<Claim> claims = claims_of(problem);
  order_of(problem, claims);
  return table_of(problem, claims);
}

// The step that is worth most a GPU; of equal ones of the type that most is left of.
std::optional<RubatoPolicy::Move> RubatoPolicy::best_move(const Claim& claim, std::size_t place,
                                                          const Room& room) {
  std::optional<Move> best;
  for (const auto& one : claim.values->types) {
    if (claim.type && *claim.type != one.type) continue;
    if (claim.first && *claim.first != one.type) continue;
    const Gpus most = std::min(claim.most, claim.size + room.left_for(claim.index, one.type));
    for (const SizeValue& to : claim.values->of(one)) {
      if (to.gpus <= claim.size || to.gpus > most) continue;
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
  std::vector<Claim> claims = claims_of(problem);
  Targets targets{.order = order_of(problem, claims), .displaces = Displaces::kLaterInOrder};
  const ValueTable table = table_of(problem, claims);
  for (Claim& claim : claims) {
    claim.values = &table[claim.index];
    Gpus known = claim.job->min;
    for (const ThroughputPoint& point : claim.job->measured) known = std::max(known, point.gpus);
    // A table says itself how far it may be tried.
    Gpus tabled = 0;
    for (const GoodputPoint& point : claim.job->goodput) tabled = std::max(tabled, point.gpus);
    claim.most = std::min(claim.job->max, tabled > 0 ? tabled : kExplore * known);
  }
  Room room(problem);
  if (problem.count_types() > 1) {
    choose_types(claims, table, room.left());
    share_out(targets.order, claims, room);
    for (Claim& claim : claims) claim.first.reset();
  }
  share_out(targets.order, claims, room);
  for (const Claim& claim : claims) {
    targets.sizes.push_back(claim.size);
    targets.types.push_back(claim.type);
  }
  return targets;
}

// A type that others need more is dear: each job looks first at the one that is worth most to it at
// its price.
void RubatoPolicy::choose_types(std::vector<Claim>& claims, const ValueTable& table,
                                const Table<TypeIndex, Gpus>& capacity) {
  const PriceTable prices = find_prices(table, capacity, kPricePasses, kPriceHalvings);
  for (Claim& claim : claims) {
    const Choice choice = best_choice(*claim.values, prices, capacity);
    if (choice.type != nullptr) claim.first = choice.type->type;
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
