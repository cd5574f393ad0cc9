// rubatoctl explain: one job in sentences. Of a snapshot (docs/snapshot.md): what it holds, what
// the plan of now does with it, what it waits for, who comes before it, what would help, and when
// it is expected to start. Of a cluster: what its status says.
#pragma once

#include "operator/api/training_job.h"
#include "scheduler/snapshot/snapshot.h"
#include "tools/rubatoctl/session.h"

#include <string>
#include <vector>

namespace rubato::ctl {

// Of a job by its name or its id. kNotFound: the snapshot has none, or several, of that name.
Result<std::size_t> position_of(const std::vector<sched::Job>& jobs, const std::string& job);

// `job`: as position_of. Costs up to kBlockerPlansMost + kForecastPlansMost plans where it waits.
Result<std::string> explain_text(const sched::Snapshot& snapshot, const std::string& job);
// Pure.
std::string explain_text(const api::TrainingJob& job, WallTime now);

// The nodes that a job avoids for one cause: "n1 until 2026-11-25T07:10:00Z (PodGivenUp): …".
struct Avoidance {
  std::string reason;
  std::string text;
};
// Those that it avoids at `now`. Pure.
std::vector<Avoidance> avoidances(const std::vector<api::AvoidedNode>& nodes, WallTime now);

struct ExplainChoice {
  std::string job;
  std::string file;  // a snapshot, "-" for standard input; "": the cluster is asked
};
Status explain(const ExplainChoice& choice, const ClusterChoice& cluster);  // to standard output

}  // namespace rubato::ctl
