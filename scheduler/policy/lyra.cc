#include "scheduler/policy/lyra.h"

#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rubato::sched {
namespace {

struct Bigger {
  Gpus size = 0;
  double saves_ms = 0;
};

// A job that has its minimum.
struct Flexible {
  JobIndex index;
  Gpus minimum = 0;
  std::vector<Bigger> sizes;
};

// Those that save time, the first kSizesMost: all small ones, then each a sixteenth larger.
std::vector<Bigger> bigger_sizes(const Job& job, const Throughput& speed, Gpus minimum) {
  std::vector<Bigger> sizes;
  if (!job.remaining_ms) return sizes;
  const double left_ms = static_cast<double>(*job.remaining_ms);
  for (auto n = size_at_least(job, minimum + 1); n && sizes.size() < Lyra::kSizesMost;
       n = size_at_least(job, *n + 1 + *n / 16)) {
    const double saves_ms = left_ms - left_ms * speed.at(job.min) / speed.at(*n);
    if (saves_ms > (sizes.empty() ? 0 : sizes.back().saves_ms)) sizes.push_back({*n, saves_ms});
  }
  return sizes;
}

// One size of each job, or none (0), of the greatest sum that fits.
std::vector<std::size_t> pack(const std::vector<Flexible>& jobs, Gpus gpus) {
  const Gpus unit = std::max<Gpus>((gpus + Lyra::kUnitsMost - 1) / Lyra::kUnitsMost, 1);
  const auto units = static_cast<std::size_t>(gpus / unit);
  const auto takes = [&](const Flexible& job, std::size_t k) {
    return static_cast<std::size_t>((job.sizes[k].size - job.minimum + unit - 1) / unit);
  };
  std::vector<double> best(units + 1, 0);
  std::vector<std::vector<std::uint8_t>> chosen(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    chosen[i].assign(units + 1, 0);
    std::vector<double> with = best;
    for (std::size_t k = 0; k < jobs[i].sizes.size(); ++k) {
      for (std::size_t u = takes(jobs[i], k); u <= units; ++u) {
        const double sum = best[u - takes(jobs[i], k)] + jobs[i].sizes[k].saves_ms;
        if (sum <= with[u]) continue;
        with[u] = sum;
        chosen[i][u] = static_cast<std::uint8_t>(k + 1);
      }
    }
    best = std::move(with);
  }
  std::vector<std::size_t> choice(jobs.size(), 0);
  std::size_t left = units;
  for (std::size_t i = jobs.size(); i-- > 0;) {
    choice[i] = chosen[i][left];
    if (choice[i] > 0) left -= takes(jobs[i], choice[i] - 1);
  }
  return choice;
}

}  // namespace

Descriptor Lyra::describe() {
  return {.name = "lyra",
          .about = "minimums shortest first, no preemption; the rest to sizes that save most time",
          .rule =
              "Jobs that run keep their minimums; then the job with the least time left gets its "
              "minimum first, and nobody is preempted. The GPUs that are left go to those larger "
              "sizes that together save jobs most time: a knapsack of which each job is one group, "
              "solved exactly. Running jobs give back and grow accordingly; what a change costs is "
              "not counted.",
          .choose =
              "Where jobs are elastic, change size at little cost, and must not be preempted. It "
              "needs the work left (stop.steps) and measured throughput; a job of which the work "
              "is not known goes first and keeps its minimum. Long jobs may starve.",
          .source =
              "Li et al., EuroSys'23. *Reconstruction* from its abstract and summaries, without "
              "the loaning of inference servers and without placement; its published results are "
              "*unverified* here",
          .knows = Knows::kRemaining,
          .elastic = true,
          .timed = true,
          .uses_throughput = true};
}

Targets Lyra::decide(const Problem& problem) const {
  Targets targets{.order = order_by(problem,
                                    [&](JobIndex j) {
                                      const Job& job = problem.job(j);
                                      return std::pair(effective_gpus(job) == 0,
                                                       job.remaining_ms.value_or(0));
                                    }),
                  .displaces = Displaces::kLowerPriority};
  targets.sizes.assign(problem.state().jobs.size(), 0);
  Room room(problem);
  Table<TypeIndex, std::vector<Flexible>> by_type(problem.count_types());
  for (const JobIndex j : targets.order) {
    const auto minimum = room.take_minimum(j);
    if (!minimum) continue;
    targets.sizes[j.value] = minimum->gpus;
    const Job& job = problem.job(j);
    const Throughput speed(job.measured, problem.name(minimum->type));
    by_type[minimum->type].push_back({j, minimum->gpus, bigger_sizes(job, speed, minimum->gpus)});
  }
  for (TypeIndex type; type.value < problem.count_types(); ++type) {
    const std::vector<Flexible>& jobs = by_type[type];
    const std::vector<std::size_t> choice = pack(jobs, room.left()[type]);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (choice[i] == 0) continue;
      const Gpus size = jobs[i].sizes[choice[i] - 1].size;
      // A queue's quota may forbid what the GPUs allow.
      if (room.take(jobs[i].index, type, size - jobs[i].minimum))
        targets.sizes[jobs[i].index.value] = size;
    }
  }
  return targets;
}

}  // namespace rubato::sched
