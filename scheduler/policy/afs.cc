#include "scheduler/policy/afs.h"

#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

namespace rubato::sched {
namespace {

constexpr TimeMs kLeastGuess = 60'000;

TimeMs time_left(const Job& job) {
  if (job.remaining_ms) return *job.remaining_ms;
  TimeMs guess = kLeastGuess;
  while (guess < job.attained_gpu_ms / job.min) guess *= 2;
  return guess;
}

struct Share {
  JobIndex index;
  const Job* job = nullptr;
  TypeIndex type;
  Throughput speed;
  double work = 0;  // ms at its minimum, times the speed there
  Gpus size = 0;
  double ends_ms = 0;
  // Of the next size, by the GPU; none: there is none that is faster.
  std::optional<Gpus> next = {};
  double gain = 0;          // of its throughput now
  double gain_of_next = 0;  // of its throughput then
};

void resize(Share& share, Gpus size) {
  share.size = size;
  const double now = share.speed.at(size);
  share.ends_ms = share.work / now;
  share.next = size_at_least(*share.job, size + 1);
  if (!share.next) return;
  const double then = share.speed.at(*share.next);
  const double step = static_cast<double>(*share.next - size);
  share.gain = (then - now) / now / step;
  share.gain_of_next = (then - now) / then / step;
  if (share.gain <= 0) share.next.reset();
}

// `first` is before `second` in order.
bool second_wins(const Share& first, const Share& second) {
  const bool is_first_shorter = first.ends_ms <= second.ends_ms;
  const Share& a = is_first_shorter ? first : second;
  const Share& b = is_first_shorter ? second : first;
  return (b.gain_of_next > a.gain) == is_first_shorter;
}

}  // namespace

Descriptor Afs::describe() {
  return {.name = "afs",
          .about = "minimums shortest first; each further GPU to whom it helps all jobs most",
          .rule =
              "The job with the least time left gets its minimum first, and preempts those with "
              "more. Then GPUs are given out one step at a time. Of two jobs the longer one gets "
              "the step if it gains a larger part of its new throughput than the shorter one gains "
              "of its present one; else the shorter one does. Running jobs give back and grow "
              "accordingly; what a change costs is not counted.",
          .choose =
              "Where jobs are elastic, change size at little cost, and their mean completion time "
              "counts. It needs the work left (stop.steps) and measured throughput; a job of which "
              "the work is not known counts as having left what it has had, rounded up to 1, 2, "
              "4 … minutes. Long jobs may starve.",
          .source =
              "Hwang et al., NSDI'21 (AFS-L, Algorithm 1). *Reconstruction*; its published results "
              "are *unverified* here",
          .knows = Knows::kRemaining,
          .elastic = true,
          .uses_throughput = true};
}

Targets Afs::decide(const Problem& problem) const {
  Targets targets{.order = order_by(problem, [&](JobIndex j) { return time_left(problem.job(j)); }),
                  .displaces = Displaces::kLaterInOrder};
  Room room(problem);
  targets.sizes.assign(problem.state().jobs.size(), 0);
  std::vector<Share> shares;
  for (const JobIndex j : targets.order) {
    const Job& job = problem.job(j);
    const auto minimum = room.take_minimum(j);
    if (!minimum) continue;
    Share share{.index = j,
                .job = &job,
                .type = minimum->type,
                .speed = Throughput(job.measured, problem.name(minimum->type))};
    share.work = static_cast<double>(time_left(job)) * share.speed.at(job.min);
    resize(share, minimum->gpus);
    shares.push_back(std::move(share));
  }
  while (true) {
    Share* best = nullptr;
    for (Share& share : shares)
      if (share.next && (best == nullptr || second_wins(*best, share))) best = &share;
    if (best == nullptr) break;
    if (room.take(best->index, best->type, *best->next - best->size))
      resize(*best, *best->next);
    else
      best->next.reset();
  }
  for (const Share& share : shares) targets.sizes[share.index.value] = share.size;
  return targets;
}

}  // namespace rubato::sched
