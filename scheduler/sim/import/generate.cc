#include "scheduler/sim/import/generate.h"

#include "scheduler/sim/import/draws.h"

namespace rubato::sched::sim {
namespace {

constexpr double kSerialShare = 0.05;

// Seconds of work a second on n GPUs, 1 at the request.
double speed_at(Gpus n, Gpus request) {
  const auto time = [](Gpus gpus) {
    return (1 - kSerialShare) / static_cast<double>(gpus) + kSerialShare;
  };
  return time(request) / time(n);
}

}  // namespace

std::vector<TraceJob> poisson_trace(const PoissonOptions& options) {
  Draws draws(options);
  std::vector<TraceJob> jobs;
  for (std::int64_t i = 0; i < options.jobs; ++i) {
    auto [job, seconds] = draws.next();
    job.min = job.max = job.request;
    job.work = seconds;
    job.speed.add("*", {job.request, 1.0});
    if (options.elastic_factor > 1) {
      job.min = 1;
      job.max = job.request * options.elastic_factor;
      for (Gpus n = 1; n <= job.max; n *= 2) job.speed.add("*", {n, speed_at(n, job.request)});
      job.speed.add("*", {job.max, speed_at(job.max, job.request)});
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace rubato::sched::sim
