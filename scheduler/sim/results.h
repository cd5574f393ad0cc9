// What a simulation says: figures of all jobs, and the files that hold them.
//
// Finish-time fairness (Themis, NSDI'20; Gavel, OSDI'20): rho = JCT / the time the job would need
// alone on 1/N of the cluster, N the average number of jobs in the system while it was there. Alone
// it starts once (the cost model's start), and trains on as many GPUs as its share has, between its
// min and max; where the share is below its min, it gets its min for that part of the time. Where
// it can use several types, its speed is the mean over them, weighted by their GPUs. The share
// above 1.05 is the part of jobs that sharing has slowed down by more than 5 %.
#pragma once

#include "scheduler/sim/simulate.h"

namespace rubato::sched::sim {

TimeMs alone_ms(const TraceJob& job, const SimCluster& cluster, double jobs_beside,
                TimeMs start_ms);

struct QueueShare {
  std::int64_t jobs = 0;
  GpuMs gpu_ms = 0;
  double share = 0;  // of the GPU time of all queues
  double jct_mean_s = 0;
};

struct Summary {
  std::string policy;
  std::string costs;
  std::string knows;
  std::int64_t finished = 0;
  std::int64_t unfinished = 0;
  std::int64_t refused = 0;
  std::int64_t deadlines = 0;  // jobs that have one, and of these those that met it
  std::int64_t deadlines_met = 0;
  // Seconds, over finished jobs. A percentile is the value at index floor(p · n) of the sorted
  // ones.
  double jct_mean_s = 0;
  double jct_p50_s = 0;
  double jct_p99_s = 0;
  double wait_mean_s = 0;     // submission to the first GPUs
  double makespan_s = 0;      // first submission to last finish
  double gpu_hours = 0;       // held
  double utilisation = 0;     // held / all GPUs from the first submission until all are free
  double training_share = 0;  // of the held time, in which they trained
  double rho_worst = 0;
  double rho_above_share = 0;  // share of jobs with rho > 1.05
  std::int64_t restarts = 0;
  std::int64_t rescales = 0;
  std::int64_t preemptions = 0;
  std::optional<std::int64_t> failures;  // of nodes; none: they do not fail
  double lost_gpu_hours = 0;             // held and trained, and computed again after a failure
  std::int64_t rounds = 0;
  std::int64_t job_rounds = 0;
  double decision_p50_us = 0;
  double decision_p99_us = 0;
  double decision_worst_us = 0;
  double decision_total_s = 0;
  std::map<std::string, QueueShare> queues;
};

constexpr double kUnfairRho = 1.05;

Summary summarise(const SimResult& result);

// A line per job: id,queue,gpus,submit_s,start_s,finish_s,jct_s,gpu_s,training_gpu_s,alone_s,rho,
// restarts,rescales,preemptions. Empty where there is no such time; names are in quotes where they
// must be (csv_cell). Where any job has a deadline, also deadline_s,on_time (1 or 0; empty: none).
std::string to_csv(const SimResult& result);
// One object with an array "runs"; names as in Summary, camelCase; deadlines where there are
// any, failures where nodes fail. The format is in docs/simulate.md.
std::string to_json(const SimCluster& cluster, const std::vector<Summary>& runs);

}  // namespace rubato::sched::sim
