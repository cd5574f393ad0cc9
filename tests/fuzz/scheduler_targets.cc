// A snapshot, as another simulator or a bug report brings it.
#include "scheduler/blockers.h"
#include "scheduler/fix.h"
#include "scheduler/forecast.h"
#include "scheduler/placement/cells.h"
#include "scheduler/policy/registry.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/fuzz/fuzz.h"

namespace rubato::sched {
namespace {

// Of larger ones the plan takes its time.
constexpr Gpus kPlannedGpus = 4096;
constexpr std::size_t kPlannedJobs = 32;
constexpr std::size_t kExplainedJobs = 6;

bool is_small(const ClusterState& state) {
  Gpus all = 0;
  for (const Node& node : state.nodes) all += node.gpus_total;
  return all <= kPlannedGpus && state.jobs.size() <= kPlannedJobs;
}

void explain_all(const Snapshot& snapshot, const Plan& plan) {
  const auto starts = expected_starts(snapshot.state, snapshot.policy);
  CHECK_EQ(starts.size(), plan.verdicts.size());
  for (std::size_t i = 0; i < plan.verdicts.size(); ++i) {
    const Job& job = snapshot.state.jobs[i];
    const Outcome outcome = plan.verdicts[i].outcome;
    const bool has_fix = !fix_of(snapshot.state, job).empty();
    const auto queue = snapshot.state.queues.find(job.queue);
    const bool is_in_cells = queue != snapshot.state.queues.end() &&
                             is_confined_to_cells(queue->second);  // which may hold none
    if (outcome == Outcome::kNever && !is_in_cells) CHECK(has_fix);
    const auto blockers = blockers_of(snapshot.state, snapshot.policy, job.id);
    CHECK(blockers.empty() || outcome == Outcome::kNotNow);
  }
}

void plan_by_each_policy(const ClusterState& state) {
  for (const Descriptor& policy : all_policies())
    CHECK_EQ(make_plan(state, {.policy = policy.name}).verdicts.size(), state.jobs.size());
}

}  // namespace

FUZZ_TARGET(snapshot) {
  const auto read = read_snapshot(input);
  if (!read.ok()) {
    CHECK(read.error().code() == Code::kInvalid && !read.error().what().empty());
    return;
  }
  const std::string text = to_text(*read);
  const auto again = read_snapshot(text);
  CHECK(again.ok() && *again == *read && to_text(*again) == text);
  if (!is_small(read->state)) return;
  const Plan plan = make_plan(read->state, read->policy);
  CHECK_EQ(plan.verdicts.size(), read->state.jobs.size());
  CHECK(json::parse(to_text(plan, read->state)).ok());
  if (read->state.jobs.size() > kExplainedJobs) return;
  explain_all(*read, plan);
  plan_by_each_policy(read->state);
}

}  // namespace rubato::sched
