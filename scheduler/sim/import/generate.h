// Made traces: Poisson arrivals from a seed; equal options give equal traces on every platform of
// one C library (they take logarithms). Sizes and durations are those of Gavel's generator
// (OSDI'20, section 7.1): 10^x minutes, x uniform in 1.5 to 3 for four jobs of five, in 3 to 4 for
// the rest; 1 GPU for 70 %, 2 for 10 %, 4 for 15 %, 8 for 5 % of the jobs.
#pragma once

#include "scheduler/sim/import/importers.h"

namespace rubato::sched::sim {

struct PoissonOptions {
  std::uint64_t seed = 1;
  std::int64_t jobs = 100;
  double jobs_per_hour = 10;
  // Above 1: a job may hold up to so many times its request, and its speed follows Amdahl with a
  // serial share of 5 %; its duration is that at its request.
  std::int64_t elastic_factor = 1;
};

std::vector<TraceJob> poisson_trace(const PoissonOptions& options);

// The same, of models that a table has (importers.h): each job is one of those measured on "v100"
// with as many GPUs, all alike likely, and does the steps that take its duration there. Rigid:
// elastic_factor is not looked at. kInvalid: the table has no such model.
Result<std::vector<TraceJob>> gavel_trace(const PoissonOptions& options, const GavelSpeeds& speeds);

}  // namespace rubato::sched::sim
