#include "scheduler/policy/lucid.h"

#include "scheduler/policy/order.h"
#include "scheduler/policy/pairs.h"
#include "scheduler/policy/predicted_durations.h"

#include <cmath>

namespace rubato::sched {
namespace {

constexpr int kJumbo = 2;
constexpr double kPartnersMost = 2;  // a guest's GPU time over its host's

}  // namespace

Descriptor Lucid::describe() {
  return {
      .name = "lucid",
      .about = "least predicted GPU time first, two jobs on the same GPUs where both lose little",
      .rule =
          "The job with the least predicted GPU time (as under `qssf`) goes first, one that "
          "does not fit holds up nobody, and nobody is preempted. A job that finds no free "
          "GPUs becomes the guest of one that has as many and no guest yet, if the memory of "
          "both fits a GPU, its predicted GPU time is at most twice that of its host, and "
          "their sharing scores together are at most `scoresMost`. A score is 0 (tiny) where "
          "the job keeps at least `tinyFrom` of its speed beside another one, 1 (medium) from "
          "`mediumFrom` on, else 2 (jumbo). The pair with the least scores is tried first.",
      .choose =
          "For many jobs that leave their GPUs half idle, where nothing may be preempted. Long "
          "jobs may starve.",
      .source =
          "Hu et al., ASPLOS'23. *Reconstruction*: what a job asks of GPUs is given, by whoever "
          "profiled it, in place of its profiling partition and decision tree, and durations "
          "are predicted as under `qssf` in place of its additive model; it packs whenever a "
          "job waits, at low load, too. Its published results are *unverified* here",
      .parameters =
          {{.name = "tinyFrom",
            .least = 0,
            .most = 1,
            .standard = 0.95,
            .about = "a job that keeps at least this part of its speed is tiny"},
           {.name = "mediumFrom", .least = 0, .most = 1, .standard = 0.85, .about = "… is medium"},
           {.name = "scoresMost",
            .least = 0,
            .most = 4,
            .standard = 2,
            .about = "sharing scores of host and guest together",
            .is_whole = true},
           {.name = "gpuMemoryGib",
            .least = 1,
            .most = 4096,
            .standard = 24,
            .unit = "GiB",
            .about = "memory of a GPU, for both"}},
      .knows = Knows::kDuration,
      .shares = Sharing::kEqual};
}

Lucid::Lucid(const std::vector<double>& parameters)
    : tiny_from_(parameters.at(0)),
      medium_from_(parameters.at(1)),
      score_most_(static_cast<int>(parameters.at(2))),
      memory_(std::llround(parameters.at(3) * kBytesPerGib)) {}

int Lucid::sharing_score(const Job& job) const {
  const double part = job.gpu_use->beside_another;
  if (part >= tiny_from_) return 0;
  return part >= medium_from_ ? 1 : kJumbo;
}

Targets Lucid::decide(const Problem& problem) const {
  const PredictedDurations durations(problem);
  const auto gpu_time = [&](const Job& job) {
    return durations.of(job) * static_cast<double>(job.min);
  };
  auto hosts = possible_hosts(problem, [&](const Job& job) { return sharing_score(job); });
  leave_out_taken(problem, hosts);
  const auto may_pair = [&](const Job& guest, const Job& host) {
    return guest.min == effective_gpus(host) &&
           sharing_score(guest) + sharing_score(host) <= score_most_ &&
           guest.gpu_use->memory + host.gpu_use->memory <= memory_ &&
           gpu_time(guest) <= kPartnersMost * gpu_time(host);
  };
  return {.order = order_by(problem, [&](JobIndex j) { return gpu_time(problem.job(j)); }),
          .displaces = Displaces::kNobody,
          .hosts = hosts_by_guest(problem, hosts, may_pair,
                                  [](const Job&, const Job&) { return true; })};
}

}  // namespace rubato::sched
