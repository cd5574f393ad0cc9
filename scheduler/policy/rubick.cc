#include "scheduler/policy/rubick.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace rubato::sched {
namespace {

constexpr Gpus kEachSizeUpTo = 64;  // above, in steps of a sixteenth; and all that were measured

struct CurvePoint {
  Gpus gpus = 0;
  double speed = 0;  // over the most that a GPU brings
};

class SensitivityCurve {
 public:
  SensitivityCurve(const Job& job, std::string_view gpu_type) : speed_(job.measured, gpu_type) {
    for (const Gpus size : sizes_of(job)) {
      const double speed = speed_.at(size);
      if (!(speed > 0)) continue;
      most_ = std::max(most_, speed / static_cast<double>(size));
      if (!points_.empty()) {
        const auto more = static_cast<double>(size - points_.back().gpus);
        if (speed < points_.back().speed * (1 + Rubick::kCurveGain * more)) continue;
      }
      points_.push_back({size, speed});
    }
    for (CurvePoint& point : points_) point.speed /= most_;
  }

  struct Rise {
    double slope = 0;
    Gpus to = 0;
  };
  // The steepest from `size`, to at most `room` more; none: it gains nothing.
  std::optional<Rise> steepest(Gpus size, Gpus room) const {
    std::optional<Rise> best;
    const double now = size > 0 ? speed_.at(size) / most_ : 0;
    for (const CurvePoint& point : points_) {
      if (point.gpus <= size || point.gpus - size > room) continue;
      const double slope = (point.speed - now) / static_cast<double>(point.gpus - size);
      if (slope > 0 && (!best || slope > best->slope)) best = Rise{slope, point.gpus};
    }
    return best;
  }
  double slope_of_minimum() const {
    if (points_.empty()) return 0;
    return points_.front().speed / static_cast<double>(points_.front().gpus);
  }

 private:
  static std::vector<Gpus> sizes_of(const Job& job) {
    std::vector<Gpus> sizes;
    for (auto n = size_at_least(job, job.min); n;
         n = size_at_least(job, *n + (*n < kEachSizeUpTo ? 1 : *n / 16)))
      sizes.push_back(*n);
    for (const ThroughputPoint& point : job.measured)
      if (point.gpus > kEachSizeUpTo && size_at_most(job, point.gpus) == point.gpus)
        sizes.push_back(point.gpus);
    std::ranges::sort(sizes);
    const auto [first, last] = std::ranges::unique(sizes);
    sizes.erase(first, last);
    return sizes;
  }

  Throughput speed_;
  double most_ = 0;  // of a GPU
  std::vector<CurvePoint> points_;
};

struct Sharer {
  JobIndex index;
  TypeIndex type;
  SensitivityCurve curve;
  Gpus size = 0;
};

Sharer sharer_of(const Problem& problem, JobIndex j, TypeIndex type) {
  return {j, type, SensitivityCurve(problem.job(j), problem.name(type))};
}

struct Climb {
  double slope = 0;
  std::size_t sharer = 0;  // in order
  Gpus to = 0;
  bool operator<(const Climb& other) const {
    return slope != other.slope ? slope < other.slope : sharer > other.sharer;
  }
};

bool is_of_guaranteed_queue(const Problem& problem, JobIndex j) {
  const auto is_some = [](const auto& quota) { return quota.second.guaranteed > 0; };
  for (std::optional<QueueIndex> q = problem.queue_of(j); q; q = problem.parent_of(*q))
    if (std::ranges::any_of(problem.quotas_of(*q), is_some)) return true;
  return false;
}

// Always the steepest; a slope falls only as GPUs run out, so it is looked at again in its turn.
void climb(std::vector<Sharer>& sharers, Room& room) {
  const auto next = [&](std::size_t i) -> std::optional<Climb> {
    const Sharer& one = sharers[i];
    const auto rise = one.curve.steepest(one.size, room.left_for(one.index, one.type));
    if (!rise) return std::nullopt;
    return Climb{rise->slope, i, rise->to};
  };
  std::priority_queue<Climb> climbs;
  const auto push = [&](const std::optional<Climb>& one) {
    if (one) climbs.push(*one);
  };
  for (std::size_t i = 0; i < sharers.size(); ++i) push(next(i));
  while (!climbs.empty()) {
    const std::size_t i = climbs.top().sharer;
    climbs.pop();
    const auto now = next(i);
    if (!now) continue;
    if (!climbs.empty() && *now < climbs.top()) {
      push(now);
      continue;
    }
    CHECK(room.take(sharers[i].index, sharers[i].type, now->to - sharers[i].size));
    sharers[i].size = now->to;
    push(next(i));
  }
}

}  // namespace

Descriptor Rubick::describe() {
  return {
      .name = "rubick",
      .about = "GPUs to the steepest sensitivity curve, guaranteed jobs' minimums first",
      .rule =
          "A job's sensitivity curve is its throughput over GPUs, with the best execution plan at "
          "each size. Minimums come first: of jobs whose queue has a guarantee, then of "
          "best-effort ones; those that run, then those that have waited for starvationSeconds, "
          "then those whose minimum is steepest. Further GPUs always take the steepest step of "
          "all curves, which may be of several GPUs: gain of throughput a GPU, over the most that "
          "a GPU ever brings that job. Jobs that run give back what is steeper elsewhere, once "
          "they have had it for keepSeconds. Nobody is preempted for a steeper curve.",
      .choose =
          "Where jobs can change their execution plan, so that throughput jumps at some sizes, and "
          "the throughput of the whole cluster counts. It needs measured throughput on the sizes "
          "(profiles), and no durations: short jobs do not pass long ones. Jobs with a large "
          "minimum may "
          "starve behind a stream of small ones.",
      .source =
          "Zhang et al., MLSys'25, and the rules of its released code. *Reconstruction*: nothing "
          "depends on models' names or counts restarts, GPUs alone are shared out, what slopes are "
          "relative to and keepSeconds are our choice, and best-effort jobs are stopped for "
          "guaranteed ones only as far as the guarantee says. On its trace the mean completion "
          "time is 17 % above the published one: *unverified*",
      .parameters =
          {{.name = "starvationSeconds",
            .least = 0,
            .most = 1e9,
            .standard = 200'000,
            .unit = "s",
            .about = "a job that has waited so long for its minimum comes before others"},
           {.name = "keepSeconds",
            .least = 0,
            .most = 1e7,
            .standard = 8'700,
            .unit = "s",
            .about = "a job gives GPUs to a steeper curve after so long; by default a change of "
                     "260 s costs it 3 % of its time"}},
      .elastic = true,
      .timed = true,
      .uses_throughput = true};
}

Rubick::Rubick(const std::vector<double>& parameters)
    : starvation_s_(parameters.at(0)), keep_ms_(parameters.at(1) * 1000) {}

Targets Rubick::decide(const Problem& problem) const {
  Room room(problem);
  const auto now_ms = static_cast<double>(problem.state().now_ms);
  Table<JobIndex, std::optional<Sharer>> all(problem.state().jobs.size());
  for (JobIndex j; j < problem.end_of_jobs(); ++j)
    if (const auto type = room.type_for(j)) all[j] = sharer_of(problem, j, *type);
  Targets targets{.order = order_by(problem, [&](JobIndex j) {
                    const Job& job = problem.job(j);
                    const bool waits = effective_gpus(job) == 0;
                    const bool starves = waits && now_ms / 1000 - job.queued_at > starvation_s_;
                    return std::tuple(!is_of_guaranteed_queue(problem, j), waits, waits && !starves,
                                      waits && all[j] ? -all[j]->curve.slope_of_minimum() : 0.0);
                  })};
  targets.sizes.assign(problem.state().jobs.size(), 0);
  std::vector<Sharer> sharers;
  for (const JobIndex j : targets.order) {
    const auto minimum = room.take_minimum(j);
    if (!minimum) continue;
    const bool is_as_guessed = minimum->type == all[j]->type;
    sharers.push_back(is_as_guessed ? std::move(*all[j]) : sharer_of(problem, j, minimum->type));
    sharers.back().size = minimum->gpus;
  }
  for (Sharer& one : sharers) {
    const Job& job = problem.job(one.index);
    const Gpus held = size_at_most(job, effective_gpus(job)).value_or(0);
    const bool keeps = now_ms - static_cast<double>(job.allocated_ms) < keep_ms_;
    if (keeps && held > one.size && room.take(one.index, one.type, held - one.size))
      one.size = held;
  }
  climb(sharers, room);
  for (const Sharer& one : sharers) targets.sizes[one.index.value] = one.size;
  return targets;
}

}  // namespace rubato::sched
