// A snapshot, as another simulator or a bug report brings it.
#include "scheduler/snapshot/snapshot.h"
#include "tests/fuzz/fuzz.h"

namespace rubato::sched {
namespace {

// Of larger ones the plan takes its time.
constexpr Gpus kPlannedGpus = 4096;
constexpr std::size_t kPlannedJobs = 32;

bool is_small(const ClusterState& state) {
  Gpus all = 0;
  for (const Node& node : state.nodes) all += node.gpus_total;
  return all <= kPlannedGpus && state.jobs.size() <= kPlannedJobs;
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
}

}  // namespace rubato::sched
