// Writes a decision: status.allocation with a higher epoch, by JSON patch that tests the epoch it
// was decided on. This is the durable decision; its effects (pods, bindings, membership) follow by
// reconciliation, by this leader or the next.
#pragma once

#include "common/clock.h"
#include "kube/client.h"
#include "operator/api/training_job.h"
#include "scheduler/plan.h"

namespace rubato::control {

// The allocation after `action`; pods get new ordinals, above `named_ordinal` too. Pure.
api::Allocation allocation_after(const api::TrainingJob& job, const sched::Action& action,
                                 std::int64_t leader, WallTime now,
                                 std::int64_t named_ordinal = -1);
// The same pods under the next epoch: makes every write that was decided on this one fail. Pure.
api::Allocation renewed(const api::TrainingJob& job, std::int64_t leader, WallTime now);
// The same pods given back: an allocation of none.
api::Allocation released(const api::TrainingJob& job, const std::string& reason,
                         std::int64_t leader, WallTime now);

// kConflict when somebody decided in between, or a newer leader has taken the job's membership
// over; the answer is the job as written. After any other failure the write may have been done, or
// may still be on its way (kube::may_have_happened).
Result<json::Value> write_allocation(kube::Client& client, const api::TrainingJob& job,
                                     const api::Allocation& allocation);

}  // namespace rubato::control
