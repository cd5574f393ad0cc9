// Conditions as metav1.Condition has them, the condition types and reasons that a TrainingJob
// carries, and the one word (`status.state`) that follows from them. Pure functions.
#pragma once

#include "common/clock.h"
#include "operator/api/enums.h"
#include "operator/api/schema.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato::api {

// Characters.
constexpr std::size_t kConditionReasonMost = 128;
constexpr std::size_t kConditionMessageMost = 32768;

struct Condition {
  std::string type;
  ConditionStatus status = ConditionStatus::kUnknown;
  std::string reason;   // CamelCase, for machines
  std::string message;  // for people; names the mend
  std::optional<WallTime> last_transition_time;
  std::int64_t observed_generation = 0;

  static const ObjectSchema& schema();
  bool operator==(const Condition&) const = default;
};

// Types of conditions of a TrainingJob. At most one of Complete and Failed is ever True; both last.
namespace condition {
inline constexpr std::string_view kQueued = "Queued";          // waits for GPUs
inline constexpr std::string_view kAllocated = "Allocated";    // has at least its minimum of GPUs
inline constexpr std::string_view kRunning = "Running";        // workers commit steps
inline constexpr std::string_view kRescaling = "Rescaling";    // a planned change is under way
inline constexpr std::string_view kRecovering = "Recovering";  // an unplanned one is
inline constexpr std::string_view kDegraded = "Degraded";      // runs with fewer than allocated
inline constexpr std::string_view kSuspended = "Suspended";
inline constexpr std::string_view kComplete = "Complete";
inline constexpr std::string_view kFailed = "Failed";
// A warning: a node other than the writer's may not be able to read the checkpoints.
inline constexpr std::string_view kCheckpointNotShared = "CheckpointNotShared";
// A warning: a checkpoint was damaged, and is set aside.
inline constexpr std::string_view kCheckpointUnusable = "CheckpointUnusable";
// A warning: members held different states; some, or all, began anew.
inline constexpr std::string_view kDiverged = "Diverged";
// A warning: spec.objective.deadline is over, or is not kept as things are.
inline constexpr std::string_view kDeadlineAtRisk = "DeadlineAtRisk";
// Of a SchedulingPolicy: it is in force. Of a TrainingQueue: all of its spec is acted on.
inline constexpr std::string_view kActive = "Active";
inline constexpr std::string_view kEnforced = "Enforced";
}  // namespace condition

// Those of a TrainingJob with one sentence each, for docs/api.md.
struct ConditionAbout {
  std::string_view type;
  std::string_view about;
};
const std::vector<ConditionAbout>& condition_types();

namespace reason {
// Queued
inline constexpr std::string_view kWaitingForGpus = "WaitingForGPUs";
inline constexpr std::string_view kWaitingForRelease =
    "WaitingForRelease";  // old pods not yet gone
inline constexpr std::string_view kQueueLimit = "QueueLimit";
inline constexpr std::string_view kLoadLimit = "LoadLimit";  // not admitted yet
inline constexpr std::string_view kOthersNotPreemptible =
    "OthersNotPreemptible";  // which would have to make room for it
inline constexpr std::string_view kGuaranteeFull =
    "GuaranteeFull";  // of a job that is not preemptible
inline constexpr std::string_view kQueueNotFound = "QueueNotFound";
inline constexpr std::string_view kQueueForbidden = "QueueForbidden";  // not for this namespace
inline constexpr std::string_view kPodForbidden = "PodForbidden";      // by a quota, Pod Security …
inline constexpr std::string_view kNeverFits =
    "NeverFits";  // no state of this cluster can hold it, or its queue never allows it
inline constexpr std::string_view kPreempted = "Preempted";
inline constexpr std::string_view kRequeued = "Requeued";
inline constexpr std::string_view kGangTimeout = "GangTimeout";    // pods did not all start in time
inline constexpr std::string_view kNodesAvoided = "NodesAvoided";  // the others are too few
inline constexpr std::string_view kNodesUnavailable =
    "NodesUnavailable";  // those that take pods now are too few, or have too little beside GPUs
inline constexpr std::string_view kNodesRefused = "NodesRefused";  // for one reason, all of them
inline constexpr std::string_view kClaimNotFound = "ClaimNotFound";
inline constexpr std::string_view kClaimsDenied = "ClaimsDenied";
inline constexpr std::string_view kClaimLost = "ClaimLost";
inline constexpr std::string_view kClaimNotBound = "ClaimNotBound";
inline constexpr std::string_view kClaimInUse = "ClaimInUse";
inline constexpr std::string_view kStorageClassNotFound = "StorageClassNotFound";
inline constexpr std::string_view kTerminating = "Terminating";  // False: the job is being deleted
// Allocated, Running
inline constexpr std::string_view kPlaced = "Placed";
inline constexpr std::string_view kReleased = "Released";
inline constexpr std::string_view kPodsStarting = "PodsStarting";
inline constexpr std::string_view kTraining = "Training";
inline constexpr std::string_view kStopped = "Stopped";
inline constexpr std::string_view kParked = "Parked";  // below min: holds its state, takes no step
// Rescaling
inline constexpr std::string_view kGrow = "Grow";
inline constexpr std::string_view kShrink = "Shrink";
inline constexpr std::string_view kSettled = "Settled";
// Recovering, Degraded
inline constexpr std::string_view kNodeLost = "NodeLost";
inline constexpr std::string_view kWorkerCrashed = "WorkerCrashed";
inline constexpr std::string_view kStepStalled = "StepStalled";
inline constexpr std::string_view kPodDeleted = "PodDeleted";
inline constexpr std::string_view kLinkFailed = "LinkFailed";
inline constexpr std::string_view kStepFailed = "StepFailed";  // a worker lives and cannot do it
inline constexpr std::string_view kRecovered = "Recovered";
inline constexpr std::string_view kFewerThanAllocated = "FewerThanAllocated";
inline constexpr std::string_view kNoJobYet = "NoJobYet";  // a script of runtime pytorch
// Suspended
inline constexpr std::string_view kSuspended = "Suspended";
inline constexpr std::string_view kSuspending = "Suspending";
inline constexpr std::string_view kResumed = "Resumed";
// Complete, Failed
inline constexpr std::string_view kStepsReached = "StepsReached";
inline constexpr std::string_view kEndedByScript = "EndedByScript";
inline constexpr std::string_view kDeadlineExceeded = "DeadlineExceeded";
inline constexpr std::string_view kMaxRestarts = "ReachedMaxRestarts";
inline constexpr std::string_view kInvalidTemplate = "InvalidTemplate";
inline constexpr std::string_view kInvalidSpec = "InvalidSpec";
// DeadlineAtRisk
inline constexpr std::string_view kDeadlinePassed = "DeadlinePassed";
inline constexpr std::string_view kDeadlineNotConsidered =
    "DeadlineNotConsidered";  // by the policy
inline constexpr std::string_view kExpectedLate = "ExpectedLate";
inline constexpr std::string_view kExpectedInTime = "ExpectedInTime";
// CheckpointUnusable, Degraded
inline constexpr std::string_view kCheckpointDamaged = "CheckpointDamaged";
inline constexpr std::string_view kCheckpointWritten = "CheckpointWritten";
inline constexpr std::string_view kCheckpointFailed = "CheckpointFailed";
// CheckpointNotShared
inline constexpr std::string_view kNodeLocalVolume = "NodeLocalVolume";
inline constexpr std::string_view kSharedVolume = "SharedVolume";
// Diverged, Recovering
inline constexpr std::string_view kStatesDiffer = "StatesDiffer";
inline constexpr std::string_view kStatesAgree = "StatesAgree";
// Active, Enforced
inline constexpr std::string_view kLoaded = "Loaded";
inline constexpr std::string_view kRefused = "Refused";
inline constexpr std::string_view kNotDefault = "NotDefault";
inline constexpr std::string_view kAllEnforced = "AllEnforced";
inline constexpr std::string_view kPartlyEnforced = "PartlyEnforced";
inline constexpr std::string_view kCellsRefused = "CellsRefused";
inline constexpr std::string_view kParentRefused = "ParentRefused";
}  // namespace reason

const Condition* find_condition(const std::vector<Condition>& conditions, std::string_view type);
bool is_true(const std::vector<Condition>& conditions, std::string_view type);

// Sets the condition of its type. lastTransitionTime becomes `now` (whole seconds, as the API keeps
// it) when the status flips or the condition is new, else it stays. observedGeneration never goes
// back. True when anything but the generation changed, so that the caller knows to write and to
// send an event.
bool set_condition(std::vector<Condition>& conditions, Condition wanted, WallTime now);

// The one word for people. In order: Failed, Complete, Terminating, Suspended, Suspending, Parked,
// Recovering, Rescaling, Running, Starting (allocated, not yet running), Queued, Pending (not yet
// seen).
std::string_view state_of(const std::vector<Condition>& conditions);
// Complete or Failed: nothing will change any more.
bool is_finished(const std::vector<Condition>& conditions);

}  // namespace rubato::api
