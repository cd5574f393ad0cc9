// The jobs of a trace as they are read: each has an id of its own, and knows its line. Private to
// this folder.
#pragma once

#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/trace.h"

#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace rubato::sched::sim {

class JobList {
 public:
  // `id_column`: where its id is from.
  Status add(TraceJob job, const CsvRow& row, std::string_view id_column) {
    if (!ids_.insert(job.id).second) return row.error(id_column, "an id that no other job has");
    job.line = row.line();
    jobs_.push_back(std::move(job));
    return ok();
  }
  std::vector<TraceJob> take() && { return std::move(jobs_); }

 private:
  std::vector<TraceJob> jobs_;
  std::unordered_set<JobId> ids_;
};

}  // namespace rubato::sched::sim
