// Gavel's allocations (Narayanan et al., OSDI'20, section 4): which share of its time each job
// should have on each GPU type. Numbers in, numbers out; what a job is, gavel.cc knows.
//
//   X[m][j]  share of job m's time on type j: >= 0, of a job at most 1 in all, and of all jobs
//            together, each by its GPUs, at most the GPUs of the type
//   T[m][j]  speed of job m on type j; sum_j T[m][j] X[m][j] is its effective throughput
//
// Effective throughput counts relative to what the job would have under X[m][j] = W_j / max(M, sum
// of W), W_j the GPUs of type j and M the number of jobs (an equal share of the types), times its
// GPUs over its weight. All objectives are linear programs of the least such level:
//
//   max-min      the least level is as high as can be. Filled up: the levels of those that it does
//                not bind rise further, as long as any can (section 4.3). Gavel finds them by an
//                integer program; here the prices of the jobs' rows say who is bound
//   throughput   the sum of effective throughput, each in GPUs by its weight
//   makespan     the last job ends as early as can be: levels are relative to the work left
//   finish time  the largest ratio of a job's time in the cluster to its time under the equal split
//                is as small as can be: a max-min program for each of a falling row of ratios
//   equal        no program at all: everybody the equal split, W_j / (M * its GPUs)
#pragma once

#include <vector>

namespace rubato::sched {

enum class ShareGoal { kMaxMin, kMaxMinFilled, kThroughput, kMakespan, kFinishTime, kEqual };

using ByGpuType = std::vector<double>;

struct ShareJob {
  double weight = 1;  // > 0
  double gpus = 1;    // that it has when it runs
  ByGpuType speed;    // with so many GPUs; 0: it cannot use the type; not 0 everywhere
  double done = 0;    // in units of `speed` times seconds
  double left = 1;    // the same; > 0
  double age_s = 0;   // since it was submitted
};

struct Shares {
  std::vector<ByGpuType> x;  // by job
  bool is_best = true;       // false: there was no answer in time, and this is the equal split
};

// `gpus`: by type. Cost: a simplex of 2 J + T rows; filling up and finish times, several of them.
Shares shares_of(const std::vector<ShareJob>& jobs, const ByGpuType& gpus, ShareGoal goal);

// Sum of speed times share.
double effective_throughput(const ShareJob& job, const ByGpuType& x);
// By what the levels are counted: see above.
double throughput_of_equal_share(const ShareJob& job, std::size_t jobs, const ByGpuType& gpus);

}  // namespace rubato::sched
