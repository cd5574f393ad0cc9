// What a job is, what each size and type would cost it, and what that is worth.
#include "scheduler/model/sizes.h"
#include "scheduler/perf/type_ratios.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato_claim.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLeastMs = 1000;  // of work left
constexpr double kFirstGuess = 600'000;
constexpr double kGuessFactor = 4;
constexpr Gpus kExplore = 4;
constexpr double kHorizonMs = 600'000;
constexpr double kValueMs = 1e7;    // who costs so much has the value 1
constexpr double kSpare = 0x1p-16;  // the value of kHorizonMs saved by GPUs that nobody needs
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

std::vector<Gpus> sizes_of(const Job& job, Gpus held, Gpus each) {
  std::vector<Gpus> sizes;
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

// A goodput table says itself how far it may be tried.
Gpus most_tried(const Job& job) {
  Gpus known = job.min;
  Gpus tabled = 0;
  for (const ThroughputPoint& point : job.measured) known = std::max(known, point.gpus);
  for (const GoodputPoint& point : job.goodput) tabled = std::max(tabled, point.gpus);
  return std::min(job.max, tabled > 0 ? tabled : kExplore * known);
}

}  // namespace

RubatoPolicy::View RubatoPolicy::look_at(const Problem& problem) const {
  const std::size_t types = problem.count_types();
  View view{.cluster = {.largest = Table<TypeIndex, Gpus>(types),
                        .keeps = Table<TypeIndex, double>(types),
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
  curves.reserve(problem.count_types());
  for (TypeIndex t; t.value < problem.count_types(); ++t)
    curves.emplace_back(job, problem.name(t), cluster.largest[t]);
  const auto speed_on = [&](std::string_view name) {
    const auto type = problem.find_type(name);
    return type ? curves[type->value] : Speed(job, name, 1);
  };
  const auto held = problem.type_held(index);
  Speed known = speed_on(held ? std::string_view(problem.name(*held)) : "");
  std::set<std::string_view> types;
  for (const ThroughputPoint& point : job.measured) types.insert(point.gpu_type);
  for (const GoodputPoint& point : job.goodput) types.insert(point.gpu_type);
  for (const std::string_view type : types)
    if (!known.is_known()) known = speed_on(type);
  Claim claim{.index = index,
              .job = &job,
              .holds = held,
              .curves = std::move(curves),
              .known = known,
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
  claim.starves = job.attained_gpu_ms == 0 && claim.held == 0 &&
                  static_cast<double>(problem.state().now_ms) - job.queued_at * 1000 > max_wait_ms_;
  return claim;
}

// Of each job on each type, from what was measured of it and of others; and what a GPU of each type
// is worth to all.
void RubatoPolicy::guess_speeds(const Problem& problem, View& view) const {
  const std::size_t types = problem.count_types();
  TypeRatios ratios(types);
  for (Claim& claim : view.claims) {
    for (const Speed& speed : claim.curves)
      claim.speeds.push_back(speed.is_known() ? speed.at(claim.job->min) : 0);
    ratios.add(claim.speeds);
  }
  double jobs = 0;
  for (Claim& claim : view.claims) {
    claim.speeds = ratios.hopes_of(claim.speeds);
    const double scale = claim.known.is_known() ? 1 : claim.known.at(claim.job->min);
    for (double& speed : claim.speeds) speed *= scale;  // else only ratios mean anything
    double fastest = claim.holds ? claim.speeds[claim.holds->value] : 0;
    for (const TypeIndex t : problem.group(claim.index).types)
      fastest = std::max(fastest, claim.speeds[t.value]);
    claim.work = claim.left_ms * fastest;
    if (problem.takes_part(claim.index)) ++jobs;
  }
  const std::vector<double> power = ratios.speeds_of(std::vector<double>(types, 0));
  double all = 0;
  for (NodeIndex n; n < problem.end_of_nodes(); ++n)
    if (problem.node(n).schedulable)
      all += power[problem.type_of(n).value] * static_cast<double>(problem.node(n).gpus_total);
  for (TypeIndex t; all > 0 && t.value < types; ++t)
    view.cluster.keeps[t] = jobs * power[t.value] / all;
  if (types > 1 && exploration_ > 0) hope_to_try(problem, ratios, view);
}

// A type on which others are slower may be the best for a job all the same, and nobody knows before
// it was there. Where GPUs of it are free, a job that has long to go tries it, and stays until it
// was measured. So does one that was stopped for that.
void RubatoPolicy::hope_to_try(const Problem& problem, const TypeRatios& ratios, View& view) const {
  Table<TypeIndex, Gpus> free(problem.count_types());
  for (NodeIndex n; n < problem.end_of_nodes(); ++n)
    if (problem.node(n).schedulable)
      free[problem.type_of(n)] += std::max<Gpus>(problem.node(n).free.gpus, 0);
  for (Claim& claim : view.claims) {
    if (claim.type || !claim.known.is_known() || !problem.takes_part(claim.index)) continue;
    const auto price = [&](TypeIndex t) { return std::max(view.cluster.keeps[t], 1.0); };
    const auto worth = [&](TypeIndex t) { return claim.speeds[t.value] / price(t); };
    std::optional<TypeIndex> best;  // of those that it was on
    for (const TypeIndex t : problem.group(claim.index).types)
      if (claim.curves[t.value].is_known() && (!best || worth(t) > worth(*best))) best = t;
    if (!best) continue;
    const auto tries = type_to_try(problem, ratios, free, claim, *best);
    if (!tries) continue;
    if (claim.holds != tries) free[*tries] -= std::max(claim.held, claim.job->min);
    const double hope = kHopeToTry * (1 + switching_margin_) * worth(*best) * price(*tries);
    claim.speeds[tries->value] = std::max(claim.speeds[tries->value], hope);
  }
}

// Of those that are free the fastest, as far as it can be guessed. By Laplace's rule of succession
// a job is the first of `many` that is faster there with a chance of 1 / (many + 2); what it then
// saves must pay for the way there and back.
std::optional<TypeIndex> RubatoPolicy::type_to_try(const Problem& problem, const TypeRatios& ratios,
                                                   const Table<TypeIndex, Gpus>& free,
                                                   const Claim& claim, TypeIndex best) const {
  std::optional<TypeIndex> fastest;
  for (const TypeIndex t : problem.group(claim.index).types) {
    if (claim.curves[t.value].is_known()) continue;
    if (claim.holds == t) return t;
    const double chance = 1 / (ratios.count(t.value, best.value) + 2);
    if (free[t] < std::max(claim.held, claim.job->min) ||
        claim.left_ms * exploration_ * chance < 2 * (claim.start_ms + claim.stall_ms))
      continue;
    if (!fastest || claim.speeds[t.value] > claim.speeds[fastest->value]) fastest = t;
  }
  return fastest;
}

ValueTable RubatoPolicy::table_of(const Problem& problem, const View& view) const {
  ValueTable table;
  table.reserve(view.claims.size());
  RoomByType room(problem);
  for (const Claim& claim : view.claims)
    table.push_back(values_of(problem, view.cluster, claim, room));
  return table;
}

std::optional<ValueTable> RubatoPolicy::values(const Problem& problem) const {
  return table_of(problem, look_at(problem));
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

JobValues RubatoPolicy::values_of(const Problem& problem, const Cluster& cluster,
                                  const Claim& claim, RoomByType& room) const {
  JobValues values;
  if (problem.is_kept_out(claim.index)) return values;
  for (const TypeIndex type : types_of(problem, claim, room)) {
    const bool is_held = claim.holds == type;
    Way way{.speed = claim.curves[type.value], .keeps = cluster.keeps[type], .is_held = is_held};
    if (!way.speed.is_known())
      way.speed = claim.known.times(claim.speeds[type.value] / claim.known.at(claim.job->min));
    values.types.push_back({type, values.lists.size()});
    values.lists.push_back(list_of(claim, way));
  }
  return values;
}

JobValues::List RubatoPolicy::list_of(const Claim& claim, const Way& way) const {
  const std::size_t count = claim.sizes.size();
  const bool is_there = way.is_held && claim.held > 0;
  const double as_it_is = is_there ? way.speed.at(claim.held) : 0;
  std::vector<double> speeds(count);
  std::vector<double> values(count);
  std::size_t best = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Gpus size = claim.sizes[i];
    speeds[i] = way.speed.at(size);
    const double time = time_ms(claim, is_there ? claim.held : 0, as_it_is, size, speeds[i]);
    double value =
        claim.job->weight * kValueMs / (time * (1 + way.keeps * static_cast<double>(size)));
    if (is_there && size == claim.held) value *= 1 + switching_margin_;
    values[i] = value < kWorthMost ? value : kWorthMost;  // also of what is no number
    if (size <= claim.most && values[i] > values[best]) best = i;
  }
  JobValues::List list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    double value = values[i];
    if (i > best) {
      const bool is_change = is_there && claim.sizes[i] != claim.held;
      value =
          values[best] + kSpare / kHorizonMs * saved_ms(claim, speeds[best], speeds[i], is_change);
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
