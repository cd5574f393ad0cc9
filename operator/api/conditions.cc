#include "operator/api/conditions.h"

#include "operator/api/schema_builder.h"

#include <algorithm>

namespace rubato::api {

const ObjectSchema& Condition::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Condition> s("Condition", "One aspect of the object's state.");
    s.field("type", &Condition::type, "What the condition is about.").required().length(1, 63);
    s.field("status", &Condition::status, "Whether it holds.").required();
    s.field("reason", &Condition::reason, "Why, as one CamelCase word.")
        .required()
        .length(1, kConditionReasonMost);
    s.field("message", &Condition::message, "Why, as a sentence that says what would help.")
        .length(0, kConditionMessageMost);
    s.field("lastTransitionTime", &Condition::last_transition_time, "When the status last changed.")
        .required();
    s.field("observedGeneration", &Condition::observed_generation,
            "The metadata.generation that was seen.");
    return s.build();
  }();
  return kSchema;
}

const std::vector<ConditionAbout>& condition_types() {
  static const std::vector<ConditionAbout> kTypes{
      {condition::kQueued, "It waits for GPUs; the message says why, and when they are expected."},
      {condition::kAllocated, "It has been given at least its minimum of GPUs."},
      {condition::kRunning, "Its workers commit steps."},
      {condition::kRescaling, "A planned change of its workers is under way; training goes on."},
      {condition::kRecovering, "A loss is being repaired; training stands still."},
      {condition::kDegraded,
       "It runs with fewer GPUs than it was given, cannot write its checkpoint, or its script has "
       "made no Job yet."},
      {condition::kSuspended,
       "spec.suspend holds it, its checkpoint is written, and nothing of it runs any more. False "
       "with reason Suspending while that is under way."},
      {condition::kComplete, "All steps are done. Lasts."},
      {condition::kFailed, "It ended without them; the reason says why. Lasts."},
      {condition::kCheckpointNotShared,
       "A warning: nodes may not be able to read each other's checkpoints."},
      {condition::kCheckpointUnusable,
       "A warning: a checkpoint was damaged. It is kept aside, older ones are tried in turn; False "
       "once another is written."},
      {condition::kDeadlineAtRisk,
       "A warning: spec.objective.deadline is over, would be missed at the speed of now, or is "
       "nothing that the scheduling policy looks at."},
      {condition::kDiverged,
       "A warning: workers held different states, as after a bit that flipped in a memory, or some "
       "added gradients wrongly twice in a row; the message names both sides. False again when "
       "rounds were committed for ten minutes since."},
  };
  return kTypes;
}

const Condition* find_condition(const std::vector<Condition>& conditions, std::string_view type) {
  for (const Condition& candidate : conditions)
    if (candidate.type == type) return &candidate;
  return nullptr;
}

bool is_true(const std::vector<Condition>& conditions, std::string_view type) {
  const Condition* found = find_condition(conditions, type);
  return found != nullptr && found->status == ConditionStatus::kTrue;
}

bool set_condition(std::vector<Condition>& conditions, Condition wanted, WallTime now) {
  const WallTime second = std::chrono::floor<std::chrono::seconds>(now);
  const auto held = std::find_if(conditions.begin(), conditions.end(),
                                 [&](const Condition& c) { return c.type == wanted.type; });
  if (held == conditions.end()) {
    wanted.last_transition_time = second;
    conditions.push_back(std::move(wanted));
    return true;
  }
  held->observed_generation = std::max(held->observed_generation, wanted.observed_generation);
  if (held->status == wanted.status && held->reason == wanted.reason &&
      held->message == wanted.message)
    return false;
  if (held->status != wanted.status) held->last_transition_time = second;
  held->status = wanted.status;
  held->reason = std::move(wanted.reason);
  held->message = std::move(wanted.message);
  return true;
}

std::string_view state_of(const std::vector<Condition>& conditions) {
  const auto holds = [&](std::string_view type) { return is_true(conditions, type); };
  if (holds(condition::kFailed)) return "Failed";
  if (holds(condition::kComplete)) return "Complete";
  const Condition* queued = find_condition(conditions, condition::kQueued);
  if (queued != nullptr && queued->reason == reason::kTerminating) return reason::kTerminating;
  if (holds(condition::kSuspended)) return "Suspended";
  const Condition* suspended = find_condition(conditions, condition::kSuspended);
  if (suspended != nullptr && suspended->reason == reason::kSuspending) return "Suspending";
  const Condition* running = find_condition(conditions, condition::kRunning);
  if (running != nullptr && running->status != ConditionStatus::kTrue &&
      running->reason == reason::kParked)
    return "Parked";
  if (holds(condition::kRecovering)) return "Recovering";
  if (holds(condition::kRescaling)) return "Rescaling";
  if (holds(condition::kRunning)) return "Running";
  if (holds(condition::kAllocated)) return "Starting";
  if (holds(condition::kQueued)) return "Queued";
  return "Pending";
}

bool is_finished(const std::vector<Condition>& conditions) {
  return is_true(conditions, condition::kComplete) || is_true(conditions, condition::kFailed);
}

}  // namespace rubato::api
