// rubatoctl what-if: what the plan of a snapshot (docs/snapshot.md) would be if something were
// different, beside the plan that it is. No cluster is asked: both are made as by `rubatoctl plan`.
#pragma once

#include "common/result.h"
#include "scheduler/snapshot/snapshot.h"

#include <string>
#include <vector>

namespace rubato::ctl {

// Jobs are named by name or id, nodes by id.
struct Changes {
  std::string policy;                      // "gavel:objective=1"; "": the snapshot's
  std::vector<std::string> without_nodes;  // their pods are lost
  // "4,like=n1": so many more, empty and ready; jobs that may use that node may use them.
  std::vector<std::string> add_nodes;
  std::vector<std::string> remove_jobs;  // they have ended, and their GPUs are free
  std::vector<std::string> set;          // "job=NAME,min=2,max=16,priority=5": one or more of these
};

struct WhatIfChoice {
  std::string file = "-";        // "-": what comes in
  std::string output = "table";  // or "json"
  Changes changes;
};

// The snapshot with all of them. kInvalid, kNotFound: which one cannot be, and what was expected;
// also where there is none.
Result<sched::Snapshot> with_changes(const sched::Snapshot& snapshot, const Changes& changes);

// What each job has once the plan is done, now and with the changes, what it waits for then, and
// sums. Costs the plans of `rubatoctl plan`, twice.
Result<std::string> what_if_text(const sched::Snapshot& snapshot, const Changes& changes,
                                 const std::string& output);

Status what_if(const WhatIfChoice& choice);  // to standard output

}  // namespace rubato::ctl
