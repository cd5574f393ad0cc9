// What a job is, what each size and type would cost it, and what that is worth.
#include "scheduler/model/sizes.h"
#include "scheduler/perf/type_ratios.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato_claim.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLeastMs = 1000;  // of work left
constexpr double kFirstGuess = 600'000;
constexpr double kFirstLookMs = 60'000;  // from when it trains until it was measured, at most
constexpr double kGuessFactor = 8;
constexpr Gpus kExplore = 4;
constexpr Gpus kBeyondTable = 2;
constexpr double kHorizonMs = 600'000;
constexpr double kSpare = 0x1p-22;  // the value of kHorizonMs saved by GPUs that nobody needs
constexpr double kWorthMost = 1 << 20;
constexpr double kHopeToTry = 1.1;  // above 1: more than what would keep it where it is
// Sizes that are looked at: all small ones, then in steps of an eighth. Where there are many jobs
// and types fewer count as small, so that all of them together stay near kSizes: what one job
// cannot use another one can.
constexpr Gpus kEachLeast = 16;
constexpr Gpus kEachMost = 64;
constexpr Gpus kSizes = 1 << 17;

Gpus each_up_to(std::size_t jobs, std::size_t types) {
  const auto lists = static_cast<Gpus>(std::max<std::size_t>(jobs * types, 1));
  return std::clamp(kSizes / lists, kEachLeast, kEachMost);
}

Gpus after(Gpus size, Gpus each) { return size < each ? size + 1 : size + size / 8; }

double guess_work_ms(const Job& job) {
  if (job.remaining_ms) return std::max(static_cast<double>(*job.remaining_ms), kLeastMs);
  const double had = static_cast<double>(job.attained_gpu_ms) / static_cast<double>(job.min);
  double guess = kFirstGuess;
  while (guess < had) guess *= kGuessFactor;
  return guess;
}

// To stop it now would lose its start for nothing that is known.
bool is_about_to_be_measured(const Job& job, TimeMs now_ms, double start_ms) {
  return effective_gpus(job) > 0 && !job.remaining_ms && job.measured.empty() &&
         job.goodput.empty() && job.allocated_ms >= 0 &&
         static_cast<double>(now_ms - job.allocated_ms) < start_ms + kFirstLookMs;
}

std::vector<Gpus> sizes_of(const Job& job, Gpus held, Gpus each) {
  std::vector<Gpus> sizes;
  sizes.reserve(static_cast<std::size_t>(std::clamp<Gpus>(job.max - job.min, 0, each)) +
                job.measured.size() + 3);
  const auto add = [&](std::optional<Gpus> size) {
    if (size && *size <= job.max) sizes.push_back(*size);
  };
  for (auto n = size_at_least(job, job.min); n; n = size_at_least(job, after(*n, each))) add(n);
  add(size_at_most(job, held));
  add(size_at_most(job, job.max));
  for (const ThroughputPoint& point : job.measured) add(size_at_most(job, point.gpus));
  std::ranges::sort(sizes);
  const auto [first, last] = std::ranges::unique(sizes);
  sizes.erase(first, last);
  return sizes;
}

// Of the point with most GPUs, by name among equals; "": there is none.
std::string_view type_known_furthest(const Job& job) {
  std::string_view type;
  Gpus most = 0;
  const auto look_at = [&](const auto& point) {
    if (point.gpus < most || (point.gpus == most && point.gpu_type >= type)) return;
    type = point.gpu_type;
    most = point.gpus;
  };
  for (const ThroughputPoint& point : job.measured) look_at(point);
  for (const GoodputPoint& point : job.goodput) look_at(point);
  return type;
}

// A goodput table says itself how far it may be tried. Its last size may be no step up, where it is
// the first one that spans nodes: without a look beyond it a job stays below for ever.
Gpus most_tried(const Job& job) {
  Gpus known = job.min;
  Gpus tabled = 0;
  for (const ThroughputPoint& point : job.measured) known = std::max(known, point.gpus);
  for (const GoodputPoint& point : job.goodput) tabled = std::max(tabled, point.gpus);
  return std::min(job.max, tabled > 0 ? kBeyondTable * tabled : kExplore * known);
}

}  // namespace

RubatoPolicy::View RubatoPolicy::look_at(const Problem& problem) const {
  const std::size_t types = problem.count_types();
  View view{.cluster = {.largest = Table<TypeIndex, Gpus>(types),
                        .each = each_up_to(problem.state().jobs.size(), types),
                        .stall_ms = typical(problem, &Job::stall_ms, stall_ms_),
                        .start_ms = typical(problem, &Job::start_ms, prepare_ms_)}};
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    Gpus& largest = view.cluster.largest[problem.type_of(n)];
    largest = std::max(largest, problem.node(n).gpus_total);
  }
  view.claims.reserve(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    view.claims.push_back(claim_of(problem, view.cluster, j));
  guess_speeds(problem, view);
  price_work(problem, view.claims);
  return view;
}

// The mean of those that were measured.
double RubatoPolicy::typical(const Problem& problem, std::optional<TimeMs> Job::* measured,
                             double unless_known) {
  double sum = 0, many = 0;
  for (const Job& job : problem.state().jobs) {
    if (!(job.*measured)) continue;
    sum += static_cast<double>(*(job.*measured));
    ++many;
  }
  return many > 0 ? sum / many : unless_known;
}

RubatoPolicy::Claim RubatoPolicy::claim_of(const Problem& problem, const Cluster& cluster,
                                           JobIndex index) const {
  const Job& job = problem.job(index);
  std::vector<Speed> curves;
  curves.reserve(problem.count_types() + 1);
  for (TypeIndex t; t.value < problem.count_types(); ++t)
    curves.emplace_back(job, problem.name(t), cluster.largest[t]);
  const std::string_view furthest = type_known_furthest(job);
  const auto of_cluster = problem.find_type(furthest);
  if (!of_cluster) curves.emplace_back(job, furthest, 1);
  const auto held = problem.type_held(index);
  Claim claim{.index = index,
              .job = &job,
              .holds = held,
              .curves = std::move(curves),
              .at_known = of_cluster ? of_cluster->value : problem.count_types(),
              .left_ms = guess_work_ms(job),
              .held = effective_gpus(job),
              .most = most_tried(job)};
  const bool may_move = job.settled && !job.mix && claim.held >= job.min;
  if (held && !may_move) claim.type = held;
  claim.sizes = sizes_of(job, claim.held, cluster.each);
  const auto ms = [](std::optional<TimeMs> measured, double otherwise) {
    return measured ? static_cast<double>(*measured) : otherwise;
  };
  claim.stall_ms = ms(job.stall_ms, cluster.stall_ms);
  claim.start_ms = ms(job.start_ms, cluster.start_ms);
  claim.join_ms = ms(job.join_ms, claim.start_ms);
  if (is_about_to_be_measured(job, problem.state().now_ms, claim.start_ms))
    claim.left_ms = kLeastMs;
  claim.starves = job.attained_gpu_ms == 0 && claim.held == 0 &&
                  static_cast<double>(problem.state().now_ms) - job.queued_at * 1000 > max_wait_ms_;
  return claim;
}

// Who is served first: higher priority, then less GPU time left for its weight. Of those of whom as
// much is guessed who has yet to start, by age, and then who started last: of the others most of
// their like are done by now.
struct RubatoPolicy::Turn {
  std::int64_t behind = 0;  // of lower priority
  double gpu_ms = 0;        // left, for its weight
  bool ran = false;
  double age = 0;
  auto operator<=>(const Turn&) const = default;
};

RubatoPolicy::Turn RubatoPolicy::turn_of(const Claim& claim, bool waits) const {
  const Job& job = *claim.job;
  const double ms =
      waits ? claim.left_ms + claim.start_ms : claim.left_ms / (1 + switching_margin_);
  const bool ran = !job.remaining_ms && job.attained_gpu_ms > 0;
  return {-job.priority, ms * static_cast<double>(job.min) / job.weight, ran,
          ran ? -job.queued_at : job.queued_at};
}

// Its GPU time left, by the part of all weights that waits for it: its own, and of those that are
// served after it. Once stopped, others are that were not before.
void RubatoPolicy::price_work(const Problem& problem, std::vector<Claim>& claims) const {
  std::vector<std::pair<Turn, Claim*>> order;
  order.reserve(claims.size());
  for (Claim& claim : claims)
    if (problem.takes_part(claim.index))
      order.emplace_back(turn_of(claim, claim.held == 0), &claim);
  std::ranges::stable_sort(order, {}, &std::pair<Turn, Claim*>::first);
  std::vector<double> later(order.size() + 1, 0);  // weights from a place on
  for (std::size_t place = order.size(); place-- > 0;)
    later[place] = later[place + 1] + order[place].second->job->weight;
  for (std::size_t place = 0; place < order.size(); ++place) {
    Claim& claim = *order[place].second;
    const auto price_of = [&](double waits) {
      return waits / later.front() * (claim.left_ms + claim.start_ms) *
             static_cast<double>(claim.job->min);
    };
    claim.price = claim.price_once_stopped = price_of(later[place]);
    if (claim.held == 0) continue;
    const auto then =
        std::ranges::upper_bound(order, turn_of(claim, true), {}, &std::pair<Turn, Claim*>::first);
    const auto after = static_cast<std::size_t>(then - order.begin());
    if (after > place) claim.price_once_stopped = price_of(claim.job->weight + later[after]);
  }
}

// Of each job on each type, from what was measured of it and of others.
void RubatoPolicy::guess_speeds(const Problem& problem, View& view) const {
  const std::size_t types = problem.count_types();
  TypeRatios ratios(types);
  for (Claim& claim : view.claims) {
    claim.speeds.reserve(types);
    for (const Speed& speed : std::span(claim.curves).first(types))
      claim.speeds.push_back(speed.is_known() ? speed.at(claim.job->min) : 0);
    ratios.add(claim.speeds);
  }
  for (Claim& claim : view.claims) {
    claim.speeds = ratios.hopes_of(std::move(claim.speeds));
    const double scale = claim.known().is_known() ? 1 : claim.known().at(claim.job->min);
    for (double& speed : claim.speeds) speed *= scale;  // else only ratios mean anything
    double fastest = claim.holds ? claim.speeds[claim.holds->value] : 0;
    for (const TypeIndex t : problem.group(claim.index).types)
      fastest = std::max(fastest, claim.speeds[t.value]);
    claim.work = claim.left_ms * fastest;
  }
  for (Claim& claim : view.claims) {
    claim.best = best_known(problem, claim);
    if (claim.best) claim.at_known = claim.best->value;
  }
  if (types > 1 && exploration_ > 0) hope_to_try(problem, ratios, view);
}

// Whether it holds GPUs there makes no difference: a job that runs looks at types as if it waited.
std::optional<TypeIndex> RubatoPolicy::best_known(const Problem& problem, const Claim& claim) {
  std::optional<TypeIndex> best;
  for (const TypeIndex t : problem.group(claim.index).types)
    if (claim.curves[t.value].is_known() &&
        (!best || claim.speeds[t.value] > claim.speeds[best->value]))
      best = t;
  return best;
}

// A type on which others are slower may be the best for a job all the same, and nobody knows before
// it was there. Where GPUs of it are free, a job that has long to go tries it, and stays until it
// was measured. So does one that was stopped for that.
void RubatoPolicy::hope_to_try(const Problem& problem, const TypeRatios& ratios, View& view) const {
  Table<NodeIndex, Resources> on_nodes = free_on_nodes(problem);
  Free free{.gpus = Table<TypeIndex, Gpus>(problem.count_types()), .room = {problem, on_nodes}};
  for (NodeIndex n; n < problem.end_of_nodes(); ++n)
    if (problem.node(n).schedulable) free.gpus[problem.type_of(n)] += on_nodes[n].gpus;
  for (Claim& claim : view.claims) {
    if (claim.type || !claim.best || !problem.takes_part(claim.index)) continue;
    const auto tries = type_to_try(problem, ratios, free, claim);
    if (!tries) continue;
    if (claim.holds != tries) free.gpus[*tries] -= std::max(claim.held, claim.job->min);
    const double hope = kHopeToTry * (1 + switching_margin_) * claim.speeds[claim.best->value];
    claim.speeds[tries->value] = std::max(claim.speeds[tries->value], hope);
    claim.tries = tries;
  }
}

// Of those that are free the fastest, as far as it can be guessed. By Laplace's rule of succession
// a job is the first of `many` that is faster there with a chance of 1 / (many + 2); what it then
// saves must pay for the way there and back.
std::optional<TypeIndex> RubatoPolicy::type_to_try(const Problem& problem, const TypeRatios& ratios,
                                                   Free& free, const Claim& claim) const {
  const Gpus least = std::max(claim.held, claim.job->min);
  std::optional<TypeIndex> fastest;
  for (const TypeIndex t : problem.group(claim.index).types) {
    if (claim.curves[t.value].is_known()) continue;
    if (claim.holds == t) return t;
    const double chance = 1 / (ratios.count(t.value, claim.best->value) + 2);
    if (free.gpus[t] < least ||
        claim.left_ms * exploration_ * chance < 2 * (claim.start_ms + claim.stall_ms) ||
        free.room.most(claim.index, t) < least)
      continue;
    if (!fastest || claim.speeds[t.value] > claim.speeds[fastest->value]) fastest = t;
  }
  return fastest;
}

ValueTable RubatoPolicy::table_of(const Problem& problem, const View& view,
                                  RoomByType& room) const {
  ValueTable table;
  table.reserve(view.claims.size());
  for (const Claim& claim : view.claims) table.push_back(values_of(problem, claim, room));
  return table;
}

std::optional<ValueTable> RubatoPolicy::values(const Problem& problem) const {
  RoomByType room(problem);
  return table_of(problem, look_at(problem), room);
}

// The one that it must keep, or else the one that it holds and all that have room for it. Where
// none has, it is all that may come to have some: what it would choose says who goes first.
std::vector<TypeIndex> RubatoPolicy::types_of(const Problem& problem, const Claim& claim,
                                              RoomByType& room) {
  if (claim.type) return {*claim.type};
  const std::vector<TypeIndex>& all = problem.group(claim.index).types;
  std::vector<TypeIndex> types = all;
  std::erase_if(types, [&](TypeIndex type) { return !room.may_choose(claim.index, type); });
  if (types.empty()) types = all;
  if (!claim.holds) return types;
  const auto held = std::ranges::lower_bound(types, *claim.holds);
  if (held == types.end() || *held != *claim.holds) types.insert(held, *claim.holds);
  return types;
}

JobValues RubatoPolicy::values_of(const Problem& problem, const Claim& claim,
                                  RoomByType& room) const {
  JobValues values;
  if (problem.is_kept_out(claim.index)) return values;
  const std::vector<TypeIndex> types = types_of(problem, claim, room);
  values.types.reserve(types.size());
  values.lists.reserve(types.size());
  for (const TypeIndex type : types) {
    const bool is_held = claim.holds == type;
    const Speed& own = claim.curves[type.value];
    const bool is_known = own.is_known();
    const Way way{
        .speed = is_known ? own : claim.known(),
        .factor = is_known ? 1 : claim.speeds[type.value] / claim.known().at(claim.job->min),
        .is_held = is_held,
        .price = is_held || claim.tries == type ? claim.price : claim.price_once_stopped};
    values.types.push_back({type, values.lists.size()});
    values.lists.push_back(list_of(claim, way, most_listed(claim, type, room)));
  }
  return values;
}

// No size that it could not have though no other job were there. Where not even the least has room,
// all: it may come to have some. Of types that it mixes it has room on all together.
Gpus RubatoPolicy::most_listed(const Claim& claim, TypeIndex type, RoomByType& room) {
  if (claim.sizes.empty() || claim.job->mix) return claim.job->max;
  const Gpus most = room.most_to_try(claim.index, type);
  return most < claim.sizes.front() ? claim.job->max : most;
}

JobValues::List RubatoPolicy::list_of(const Claim& claim, const Way& way, Gpus most) const {
  const auto count =
      static_cast<std::size_t>(std::ranges::upper_bound(claim.sizes, most) - claim.sizes.begin());
  const bool is_there = way.is_held && claim.held > 0;
  const double as_it_is = is_there ? way.at(claim.held) : 0;
  struct Listed {
    double speed;
    double value;
  };
  std::vector<Listed> of_size;
  of_size.reserve(count);
  std::size_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Gpus size = claim.sizes[i];
    const double speed = way.at(size);
    const double time = time_ms(claim, is_there ? claim.held : 0, as_it_is, size, speed);
    double value = way.price / time;
    if (is_there && size == claim.held) value *= 1 + switching_margin_;
    of_size.push_back({speed, value < kWorthMost ? value : kWorthMost});  // also what is no number
    if (size <= claim.most && of_size[i].value > of_size[best].value) best = i;
  }
  JobValues::List list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    double value = of_size[i].value;
    if (i > best) {
      const bool is_change = is_there && claim.sizes[i] != claim.held;
      value =
          of_size[best].value +
          kSpare / kHorizonMs * saved_ms(claim, of_size[best].speed, of_size[i].speed, is_change);
    }
    list.push_back({claim.sizes[i], std::llround(value * static_cast<double>(kValueOne))});
  }
  return list;
}

// How long until it is done, if it has so many GPUs from now on. `held`: of this type.
double RubatoPolicy::time_ms(const Claim& claim, Gpus held, double as_it_is, Gpus gpus,
                             double speed) const {
  const double after = claim.work / speed;
  if (held == 0) return claim.start_ms + after;
  if (gpus == held) return after;
  if (gpus < held) return claim.stall_ms + after;
  if (claim.work <= claim.join_ms * as_it_is) return claim.work / as_it_is;
  return claim.join_ms + claim.stall_ms + (claim.work - claim.join_ms * as_it_is) / speed;
}

// By GPUs beyond what it would choose, within the horizon.
double RubatoPolicy::saved_ms(const Claim& claim, double from, double to, bool is_change) const {
  const double part = 1 - from / to;
  const double runs = std::min(claim.work / from, kHorizonMs);
  double saved = runs * part - claim.stall_ms;  // when they are given back
  if (is_change) saved -= std::min(claim.join_ms, runs) * part + claim.stall_ms;
  return saved > 0 ? saved : 0;
}

}  // namespace rubato::sched
