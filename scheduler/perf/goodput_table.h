// The goodput of a job on n GPUs of one type, as a policy asks for it: from the job's own table
// (Job::goodput), which whoever knows a model of it has made, else from its measured throughput,
// which is its goodput where the batch is fixed.
//
// Of a count with points the one holds that has most nodes, but no more than are asked for; if all
// have more, the one with fewest. Between counts, and beyond them, time by GPUs has Amdahl's form
// through the best point of each count (throughput.h).
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/perf/throughput.h"

#include <string_view>
#include <vector>

namespace rubato::sched {

class GoodputTable {
 public:
  GoodputTable(const Job& job, std::string_view gpu_type);
  // 0 for 0 GPUs; relative to one GPU where nothing is known. O(log points).
  double at(Gpus gpus, std::int64_t nodes) const;
  bool is_known() const { return speed_.is_measured(); }
  // How far it may be tried: the largest count of the table; else twice the largest measured
  // (Pollux, OSDI'21 §4.1); else the job's minimum.
  Gpus most() const { return most_; }

 private:
  std::vector<GoodputPoint> points_;  // of the type, by count and nodes
  Throughput speed_;
  Gpus most_;
};

}  // namespace rubato::sched
