#include "scheduler/policy/optimus.h"

#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <queue>

namespace rubato::sched {
namespace {

struct Funded {
  JobIndex index;
  TypeIndex type;
  Throughput speed;
  double work = 0;  // ms at its minimum, times the speed there
};

struct Step {
  double gain_ms;     // by the GPU
  std::size_t share;  // in order
  Gpus to;
  bool operator<(const Step& other) const {
    return gain_ms != other.gain_ms ? gain_ms < other.gain_ms : share > other.share;
  }
};

}  // namespace

Descriptor Optimus::describe() {
  return {
      .name = "optimus",
      .about = "minimums smallest first; each further GPU to whose time left falls most",
      .rule =
          "The job with the smallest minimum gets it first, and preempts larger ones. Then "
          "GPUs are given out one step at a time, to the job whose time left falls most by it, "
          "until nobody's falls. Running jobs give back and grow accordingly; what a change "
          "costs is not counted.",
      .choose =
          "Where jobs are elastic, change size at little cost, and long ones should end "
          "sooner. It needs the work left (stop.steps) and measured throughput; a job of "
          "which the work is not known keeps its minimum. Jobs with a large minimum may "
          "starve.",
      .source =
          "Peng et al., EuroSys'18, section 4.1, without parameter servers as in Pollux's "
          "artifact. *Reconstruction*; on Pollux's workloads its mean completion times are 1 to 7 "
          "% above those that Pollux's artifact reports (benchmarks.md); those of its own paper "
          "are *unverified* here",
      .knows = Knows::kRemaining,
      .elastic = true,
      .timed = true,
      .uses_throughput = true};
}

Targets Optimus::decide(const Problem& problem) const {
  Targets targets{.order = order_by(problem, [&](JobIndex j) { return problem.job(j).min; }),
                  .displaces = Displaces::kLaterInOrder};
  targets.sizes.assign(problem.state().jobs.size(), 0);
  Room room(problem);
  std::vector<Funded> shares;
  std::priority_queue<Step> steps;
  const auto push = [&](std::size_t i) {
    const Funded& share = shares[i];
    const Gpus size = targets.sizes[share.index.value];
    const auto to = size_at_least(problem.job(share.index), size + 1);
    if (!to) return;
    const double gain_ms = (share.work / share.speed.at(size) - share.work / share.speed.at(*to)) /
                           static_cast<double>(*to - size);
    if (gain_ms > 0) steps.push({gain_ms, i, *to});
  };
  for (const JobIndex j : targets.order) {
    const Job& job = problem.job(j);
    const auto minimum = room.take_minimum(j);
    if (!minimum) continue;
    targets.sizes[j.value] = minimum->gpus;
    const Throughput speed(job.measured, problem.name(minimum->type));
    const double work = static_cast<double>(job.remaining_ms.value_or(0)) * speed.at(job.min);
    shares.push_back({.index = j, .type = minimum->type, .speed = speed, .work = work});
  }
  for (std::size_t i = 0; i < shares.size(); ++i) push(i);
  while (!steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const Funded& share = shares[step.share];
    Gpus& size = targets.sizes[share.index.value];
    if (!room.take(share.index, share.type, step.to - size)) continue;
    size = step.to;
    push(step.share);
  }
  return targets;
}

}  // namespace rubato::sched
