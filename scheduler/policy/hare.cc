#include "scheduler/policy/hare.h"

#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"
#include "scheduler/policy/turns.h"

#include <algorithm>
#include <cmath>

namespace rubato::sched {
namespace {

// Of a GPU of each type that it may use, at its minimum; relative where nothing was measured there.
std::vector<double> worth_by_type(const Problem& problem, JobIndex j) {
  const Job& job = problem.job(j);
  std::vector<double> worth(problem.count_types(), 0);
  double most = 0;
  for (const TypeIndex type : problem.group(j).types) {
    const Throughput speed(job.measured, problem.name(type));
    if (speed.is_measured()) worth[type.value] = speed.at(job.min);
    most = std::max(most, worth[type.value]);
  }
  for (const TypeIndex type : problem.group(j).types) {
    double& one = worth[type.value];
    one = one > 0 && most > 0 ? one / most : 1;  // nobody knows better
  }
  return worth;
}

double service_ms(const Problem& problem, JobIndex j, const std::vector<double>& worth) {
  const Job& job = problem.job(j);
  GpuMs known = 0;
  double service = 0;
  for (const auto& [name, gpu_ms] : job.attained_by_type) {
    const auto type = problem.find_type(name);
    service +=
        static_cast<double>(gpu_ms) * (type && worth[type->value] > 0 ? worth[type->value] : 1);
    known += gpu_ms;
  }
  return (service + static_cast<double>(std::max<GpuMs>(job.attained_gpu_ms - known, 0))) /
         job.weight;
}

}  // namespace

Descriptor Hare::describe() {
  return {.name = "hare",
          .about = "least service first, by what GPU types are worth; starts on what there is",
          .rule =
              "Who has had the least service goes first: GPU time on each type, times the job's "
              "speed there over its speed on its fastest type, over its weight. It takes as many "
              "GPUs as are left, and as nodes have room for without other jobs, from its minimum "
              "to its maximum, of the type where that many make it fastest: it never waits for its "
              "whole size. A job keeps its type unless another one is faster by `switchGain`, and "
              "its turn for `quantumSeconds`.",
          .choose =
              "Where GPU types differ much, jobs can run on fewer GPUs than they ask for, and a "
              "change costs little. Nothing need be known of durations.",
          .source =
              "Chen et al., HPDC'22, and the online rule of its journal version. *Reconstruction* "
              "from the idea: a job's tasks run on one type at a time, and its size is between its "
              "minimum and its maximum. Its published results are *unverified* here",
          .parameters = {{.name = "quantumSeconds",
                          .least = 1,
                          .most = 86'400,
                          .standard = 60,
                          .unit = "s",
                          .about = "a job keeps its GPUs for at least so long"},
                         {.name = "switchGain",
                          .least = 0,
                          .most = 100,
                          .standard = 0.2,
                          .about = "another type must make it faster by this part"}},
          .elastic = true,
          .timed = true,
          .uses_throughput = true};
}

Hare::Hare(const std::vector<double>& parameters)
    : quantum_ms_(std::llround(parameters.at(0) * 1000)), switch_gain_(parameters.at(1)) {}

Targets Hare::decide(const Problem& problem) const {
  const std::size_t count = problem.state().jobs.size();
  std::vector<std::vector<double>> worth(count);
  for (JobIndex j; j < problem.end_of_jobs(); ++j) worth[j.value] = worth_by_type(problem, j);
  const TimeMs now = problem.state().now_ms;
  Targets targets{.order = order_by(problem,
                                    [&](JobIndex j) {
                                      if (is_in_quantum(problem.job(j), now, quantum_ms_))
                                        return -1.0;
                                      return service_ms(problem, j, worth[j.value]);
                                    }),
                  .displaces = Displaces::kLaterInOrder,
                  .sizes = std::vector<Gpus>(count, 0),
                  .types = std::vector<std::optional<TypeIndex>>(count),
                  .types_hold = true};
  Room room(problem);
  RoomByType room_by_type(problem);
  for (const JobIndex j : targets.order) {
    const Job& job = problem.job(j);
    if (!problem.takes_part(j)) continue;
    const auto held = problem.type_held(j);
    std::optional<Room::Minimum> best;
    double most = 0;
    for (const TypeIndex type : problem.group(j).types) {
      const auto size =
          size_at_most(job, std::min(room.left_for(j, type), room_by_type.most_to_try(j, type)));
      if (!size || (held && type != *held && is_in_quantum(job, now, quantum_ms_))) continue;
      const Throughput speed(job.measured, problem.name(type));
      double rate = worth[j.value][type.value] * speed.at(*size) / speed.at(job.min);
      if (held && type != *held) rate /= 1 + switch_gain_;
      if (rate > most) {
        most = rate;
        best = {type, *size};
      }
    }
    if (!best || !room.take(j, best->type, best->gpus)) continue;
    targets.sizes[j.value] = best->gpus;
    targets.types[j.value] = best->type;
  }
  return targets;
}

std::optional<TimeMs> Hare::next_wake(const ClusterState& state) const {
  return end_of_first_quantum(state, quantum_ms_);
}

}  // namespace rubato::sched
