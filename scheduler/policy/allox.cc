#include "scheduler/policy/allox.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/solver/matching.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace rubato::sched {
namespace {

constexpr double kLongestMs = 1e10;  // costs stay far below kMatchCostMost

struct Slot {
  TypeIndex type;
  std::size_t behind = 0;  // jobs that start after it
};

struct Waiting {
  JobIndex index;
  const Job* job = nullptr;
  std::vector<TypeIndex> types;  // that have room for its minimum now
};

// Of the fastest type that was measured.
double fastest(const Job& job) {
  double best = 0;
  for (const ThroughputPoint& point : job.measured)
    best = std::max(best, Throughput(job.measured, point.gpu_type).at(job.min));
  return best;
}

double time_ms(const Job& job, const std::string& type) {
  const TimeMs unknown = job.attained_gpu_ms / job.min;  // as much as it has had
  const TimeMs left = job.remaining_ms.value_or(job.duration_ms.value_or(unknown));
  double ms = std::max(static_cast<double>(left), 1.0);
  const Throughput speed(job.measured, type);
  if (speed.is_measured()) ms *= fastest(job) / speed.at(job.min);
  return std::min(ms, kLongestMs);
}

// By age.
std::vector<Waiting> waiting_of(const Problem& problem, const Room& free) {
  std::vector<Waiting> all;
  for (const JobIndex j : order_by(problem, [](JobIndex) { return 0; })) {
    const Job& job = problem.job(j);
    const auto least = size_at_least(job, job.min);
    if (effective_gpus(job) > 0 || !least || !free.type_for(j)) continue;
    Waiting waiting{.index = j, .job = &job, .types = {}};
    for (const TypeIndex type : problem.group(j).types)
      if (*least <= free.left_for(j, type)) waiting.types.push_back(type);
    if (!waiting.types.empty()) all.push_back(std::move(waiting));
  }
  return all;
}

std::vector<Slot> match(const Problem& problem, const std::vector<Waiting>& jobs,
                        const Room& free) {
  CostTable costs(jobs.size(), jobs.size() * problem.count_types());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    for (const TypeIndex type : jobs[i].types) {
      const double takes = time_ms(*jobs[i].job, problem.name(type));
      const double part =
          static_cast<double>(jobs[i].job->min) / static_cast<double>(free.left()[type]);
      for (std::size_t behind = 0; behind < jobs.size(); ++behind)
        costs.at(i, type.value * jobs.size() + behind) =
            std::llround(takes * (1 + static_cast<double>(behind) * part));
    }
  }
  const auto columns = least_cost_matching(costs);
  CHECK(columns.has_value());
  std::vector<Slot> slots;
  for (const std::size_t column : *columns)
    slots.push_back({.type = {static_cast<std::uint32_t>(column / jobs.size())},
                     .behind = column % jobs.size()});
  return slots;
}

enum class Turn { kNow, kNext, kLater };  // fits now; is matched; is not

}  // namespace

Descriptor Allox::describe() {
  return {.name = "allox",
          .about = "which waiting job goes first, and to which GPU type, by a least-cost matching",
          .rule =
              "Jobs that wait are matched to positions in the queues of GPU types that have free "
              "GPUs, such that the sum of their completion times is least: a job's time on a type "
              "counts once for itself and once for each job behind it. The first of each type "
              "start there. A job runs to its end; nobody is preempted.",
          .choose =
              "Where there are several GPU types, jobs differ in how much faster one of them makes "
              "them, and the mean completion time counts. It needs durations (stop.steps) and "
              "throughput that was measured on the types. Long jobs may starve; alpha bounds "
              "that.",
          .source =
              "Le et al., EuroSys'20. *Reconstruction*: GPU types stand for its CPUs and GPUs, "
              "jobs may need several GPUs, and jobs are admitted to the matching by the time they "
              "have waited, as in Gavel's code of this policy; its published results are "
              "*unverified* here",
          .parameters = {{.name = "alpha",
                          .least = 0,
                          .most = 1,
                          .standard = 1,
                          .about = "the part of the waiting jobs that is matched, those that have "
                                   "waited longest; less is fairer"}},
          .knows = Knows::kDuration,
          .uses_throughput = true};
}

Allox::Allox(const std::vector<double>& parameters) : alpha_(parameters.at(0)) {}

Targets Allox::decide(const Problem& problem) const {
  const std::size_t all = problem.state().jobs.size();
  Room free = Room::unheld(problem);
  std::vector<Waiting> jobs = waiting_of(problem, free);
  const Gpus gpus = std::accumulate(free.left().begin(), free.left().end(), Gpus{0});
  const double share = std::max(static_cast<double>(gpus),
                                std::ceil(alpha_ * static_cast<double>(jobs.size()) - 1e-9));
  jobs.resize(std::min({jobs.size(), static_cast<std::size_t>(share), kJobsMost}));
  const std::vector<Slot> slots = match(problem, jobs, free);

  std::vector<std::size_t> first_to_last(jobs.size());
  std::iota(first_to_last.begin(), first_to_last.end(), 0U);
  std::ranges::stable_sort(first_to_last, std::greater(),
                           [&](std::size_t i) { return slots[i].behind; });
  Targets targets{.displaces = Displaces::kNobody};
  targets.types.resize(all);
  std::vector<std::pair<Turn, std::size_t>> turn(all, {Turn::kLater, 0});
  for (std::size_t place = 0; place < jobs.size(); ++place) {
    const std::size_t i = first_to_last[place];
    const JobIndex j = jobs[i].index;
    const bool fits =
        free.take(j, slots[i].type, *size_at_least(problem.job(j), problem.job(j).min));
    turn[j.value] = {fits ? Turn::kNow : Turn::kNext, place};
    targets.types[j.value] = slots[i].type;
  }
  targets.order = order_by(problem, [&](JobIndex j) { return turn[j.value]; });
  return targets;
}

}  // namespace rubato::sched
