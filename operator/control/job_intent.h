// What is wanted of a job now, as a pure function of what is known: train, stop, or end for good.
#pragma once

#include "operator/api/training_job.h"
#include "operator/coordinator/coordinator.h"

#include <optional>
#include <string>

namespace rubato::control {

enum class Intent { kTrain, kStop, kOver };

struct IntentFacts {
  const api::TrainingJob* job = nullptr;
  const coordinator::View* view = nullptr;  // null: the coordinator does not know the job
  std::string failure;                      // not empty: it failed for good, and why
  bool pods_left = false;                   // some pod of it has not ended
  MonoTime now{};
};

struct Decision {
  Intent intent = Intent::kTrain;
  std::string stop_reason;                    // kStop, kOver
  std::string queued_reason, queued_message;  // not empty: why it queues again
};

// A stop for any reason but spec.suspend is carried through once the workers were asked. A suspend
// that is taken back before all have stopped is called off: they go on in a new generation. One
// that is taken back later is carried through too: the allocation is released, the pods end, and
// the job queues and begins anew from its checkpoint.
Decision decide_intent(const IntentFacts& facts);

struct EndForGood {
  std::string failure_reason, failure_message;  // of the condition Failed
};

// Whether its workers were ended for good, and why: as the coordinator says, or the job's record
// where the coordinator does not know the job. Why is known to the leader that ended them only.
std::optional<EndForGood> ended_for_good(const api::TrainingJob& job,
                                         const coordinator::View* view);

// The stop that the job is in the middle of, though nothing asks for it any more.
bool finishes_a_stop(const api::TrainingJob& job, const coordinator::View* view);

}  // namespace rubato::control
