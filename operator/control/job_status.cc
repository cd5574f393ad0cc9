#include "operator/control/job_status.h"

#include "common/some_of.h"
#include "common/words.h"
#include "operator/api/resources.h"
#include "operator/control/cluster_view.h"
#include "operator/control/job_figures.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace rubato::control {

namespace {

using coordinator::Phase;
constexpr std::size_t kPodsNamed = 8;
namespace condition = api::condition;
namespace reason = api::reason;

std::string rounded(double value) {  // 412k, 1.3M, 870
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

class Builder {
 public:
  explicit Builder(const JobFacts& facts)
      : facts_(facts), job_(*facts.job), status_(facts.job->status) {}

  api::TrainingJobStatus run() {
    // A spec that cannot be read is not looked at: a pod of it is tried once it can be.
    if (facts_.is_tried && facts_.forbidden.empty() && job_.unreadable.empty())
      status_.observed_generation = job_.meta.generation;
    put_figures(facts_, status_);
    status_.throughput_profile = facts_.profile;
    status_.priority = facts_.priority;
    conditions();
    status_.state = std::string(api::state_of(status_.conditions));
    status_.reason = state_reason();
    display();
    status_.avoided_nodes = facts_.avoided_nodes;
    status_.replicas = held();
    status_.selector = std::string(api::kLabelJob) + "=" + job_.meta.name;
    return std::move(status_);
  }

 private:
  std::int32_t held() const { return job_.status.allocation ? job_.status.allocation->gpus : 0; }
  std::int32_t members() const {
    return facts_.view ? static_cast<std::int32_t>(facts_.view->members.size()) : 0;
  }
  bool is(Phase phase) const { return facts_.view && facts_.view->phase == phase; }
  bool is_stepping() const { return is(Phase::kTraining) || is(Phase::kSwitching); }

  // The leader is new, and does not know how the workers are: what was said of them stays.
  bool is_taken_over() const {
    if (facts_.view) return facts_.view->taking_over;
    const std::string phase = job_.status.membership ? job_.status.membership->phase : "";
    return held() > 0 &&
           (phase == name_of(Phase::kTraining) || phase == name_of(Phase::kSwitching));
  }

  void set(std::string_view type, bool value, std::string_view why, std::string_view message) {
    // A condition that was never true and is not now says nothing.
    if (!value && api::find_condition(status_.conditions, type) == nullptr) return;
    put(type, value, why, message);
  }

  void put(std::string_view type, bool value, std::string_view why, std::string_view message) {
    api::Condition wanted;
    wanted.type = std::string(type);
    wanted.status = value ? api::ConditionStatus::kTrue : api::ConditionStatus::kFalse;
    // A status with one word too many is refused as a whole.
    wanted.reason = std::string(utf8_prefix(why, api::kConditionReasonMost));
    wanted.message = std::string(utf8_prefix(message, api::kConditionMessageMost));
    wanted.observed_generation = job_.meta.generation;
    api::set_condition(status_.conditions, std::move(wanted), facts_.now);
  }

  void conditions() {
    if (api::is_finished(job_.status.conditions)) return;
    const bool failed = !facts_.failed_reason.empty();
    const bool complete = !failed && is(Phase::kFinished);
    if (failed) set(condition::kFailed, true, facts_.failed_reason, facts_.failed_message);
    if (complete) {
      const bool is_early = facts_.view->ended_at != 0;
      set(condition::kComplete, true, is_early ? reason::kEndedByScript : reason::kStepsReached,
          is_early ? fmt::format("the script ended the job after step {}", facts_.view->ended_at)
                   : fmt::format("step {}, the last one, is committed", facts_.view->step));
    }
    const bool over = failed || complete;
    if (over) status_.completion_time = facts_.now;
    if (job_.spec.suspend) status_.start_time.reset();  // the deadline counts from the resume
    parked(over);
    suspended(over);
    queued(over);
    const bool allocated = !over && held() > 0;
    set(condition::kAllocated, allocated, allocated ? reason::kPlaced : reason::kReleased,
        allocated ? fmt::format("{}: {}", counted(held(), "GPU"), job_.status.allocation->reason)
                  : "holds no GPUs");
    if (over || !is_taken_over()) {
      running(over);
      changing(over);
    }
    checkpoint_sharing();
    checkpoint_damage();
    diverged();
    deadline(over);
  }

  void deadline(bool over) {
    const auto& due = job_.spec.objective.deadline;
    if (!due)
      return set(condition::kDeadlineAtRisk, false, reason::kExpectedInTime, "has no deadline");
    const std::string when = to_rfc3339(*due);
    if (facts_.now > *due)
      return set(condition::kDeadlineAtRisk, true, reason::kDeadlinePassed,
                 fmt::format("was to be done by {}", when));
    if (over)
      return set(condition::kDeadlineAtRisk, false, reason::kExpectedInTime,
                 fmt::format("ended before {}", when));
    if (is_late(std::chrono::floor<std::chrono::seconds>(*due - facts_.now).count()))
      return set(condition::kDeadlineAtRisk, true, reason::kExpectedLate,
                 fmt::format("at the speed of now it is not done by {}; more GPUs, fewer "
                             "stop.steps or a later deadline help",
                             when));
    if (facts_.verdict && !facts_.verdict->ignores_deadline.empty())
      return set(condition::kDeadlineAtRisk, true, reason::kDeadlineNotConsidered,
                 fmt::format("the scheduling policy {} does not look at deadlines ({}); edf, "
                             "chronus and elasticFlow do: spec.policy of the SchedulingPolicy",
                             facts_.verdict->ignores_deadline, when));
    set(condition::kDeadlineAtRisk, false, reason::kExpectedInTime,
        fmt::format("nothing stands against {}", when));
  }

  // Who was late is in time again with a twentieth to spare, and once it takes steps: near the
  // border, and at each change of members, nothing is said anew.
  bool is_late(std::int64_t seconds_until_due) const {
    const auto* before = api::find_condition(job_.status.conditions, condition::kDeadlineAtRisk);
    const bool was_late = before != nullptr && before->reason == reason::kExpectedLate &&
                          before->observed_generation == job_.meta.generation;
    if (!is_stepping()) return was_late;
    const std::int64_t left =
        status_.progress ? status_.progress->estimated_remaining_seconds.value_or(0) : 0;
    return left > seconds_until_due - (was_late ? seconds_until_due / 20 : 0);
  }

  void parked(bool over) {
    if (over || !is(Phase::kParked)) return status_.parked_since.reset();
    if (!status_.parked_since) status_.parked_since = facts_.now;
  }

  void checkpoint_damage() {
    if (!facts_.view || !facts_.view->checkpoint_damaged) return;
    const std::string& damaged = *facts_.view->checkpoint_damaged;
    set(condition::kCheckpointUnusable, !damaged.empty(),
        damaged.empty() ? reason::kCheckpointWritten : reason::kCheckpointDamaged,
        damaged.empty() ? "a checkpoint was written since" : damaged);
  }

  // For a while, under whichever leader: only the one that saw it knows more than the condition.
  void diverged() {
    if (facts_.view && !facts_.view->diverged.empty())
      return set(condition::kDiverged, true, reason::kStatesDiffer, facts_.view->diverged);
    const api::Condition* told = api::find_condition(status_.conditions, condition::kDiverged);
    if (told == nullptr || told->status != api::ConditionStatus::kTrue || !is_stepping()) return;
    if (facts_.now - told->last_transition_time.value_or(facts_.now) < coordinator::kDivergedShown)
      return;
    set(condition::kDiverged, false, reason::kStatesAgree, "rounds were committed since");
  }

  // Nobody had to read one yet: nothing new is known.
  void checkpoint_sharing() {
    if (!facts_.view || !facts_.view->checkpoint_shared) return;
    const bool shared = *facts_.view->checkpoint_shared;
    set(condition::kCheckpointNotShared, !shared,
        shared ? reason::kSharedVolume : reason::kNodeLocalVolume,
        shared ? "workers on other nodes than the writer's read it"
               : facts_.view->checkpoint_unshared_by +
                     "; put spec.training.checkpoint.path on a volume that all nodes share, or the "
                     "loss of a node may cost the steps since the last one that can be read");
  }

  // True only when nothing of the job runs any more.
  void suspended(bool over) {
    if (over) return set(condition::kSuspended, false, reason::kReleased, "finished");
    if (!job_.spec.suspend) {
      if (job_.meta.is_deleting())
        return set(condition::kSuspended, false, reason::kTerminating, "is being deleted");
      if (!facts_.finishes_a_stop)
        return set(condition::kSuspended, false, reason::kResumed, "resumed");
      return put(
          condition::kSuspended, false, reason::kSuspending,
          "resumed when its workers had stopped already: it gives its GPUs back, then queues "
          "again");
    }
    const bool stops = facts_.view && !facts_.view->members.empty() &&
                       facts_.view->end == Phase::kWaiting && held() > 0;
    if (stops) {
      return put(condition::kSuspended, false, reason::kSuspending,
                 job_.spec.training ? "writes a checkpoint, then gives its GPUs back"
                                    : "its program is told to end, then it gives its GPUs back");
    }
    if (held() > 0 || !facts_.pods_left.empty()) {
      return put(condition::kSuspended, false, reason::kSuspending,
                 facts_.pods_left.empty() ? "gives its GPUs back"
                                          : "waits until its pods have ended: " + pods_left());
    }
    put(condition::kSuspended, true, reason::kSuspended, suspended_message());
  }

  std::string pods_left() const { return some_of(facts_.pods_left, kPodsNamed); }

  std::string suspended_message() const {
    const char* mend = "set spec.suspend to false to go on";
    if (!job_.spec.training) return fmt::format("suspended; {}", mend);  // its own checkpoints
    if (!status_.progress || status_.progress->step == 0)
      return fmt::format("suspended before its first step; {}", mend);
    const std::int64_t step = status_.progress->step;
    const std::int64_t saved = status_.progress->checkpoint_step;
    if (saved >= step) return fmt::format("suspended at step {}; {}", step, mend);
    return fmt::format(
        "suspended at step {}, but its newest checkpoint is of step {}, and it goes "
        "on from there; {}",
        step, saved, mend);
  }

  void queued(bool over) {
    const bool waits = !over && held() == 0 && !job_.spec.suspend;
    status_.expected_start_time.reset();
    if (!over && job_.meta.is_deleting())
      return put(condition::kQueued, false, reason::kTerminating, deletion());
    if (!waits) return not_queued(over);
    if (!facts_.forbidden.empty())
      return set(condition::kQueued, true, reason::kPodForbidden,
                 "its pods may not be made, and it waits without GPUs: " + facts_.forbidden);
    // Whether they may be made now is not known: it waits on.
    if (!facts_.is_tried && is_pod_forbidden(job_)) return;
    if (!facts_.queued_reason.empty()) {
      return set(condition::kQueued, true, facts_.queued_reason, facts_.queued_message);
    }
    if (!facts_.verdict) {
      return set(condition::kQueued, true, reason::kWaitingForGpus, "waits for a scheduling round");
    }
    status_.expected_start_time = facts_.verdict->expected_start;
    // The decision is not in its status yet: it is about to be written, or to be shown.
    const bool is_placed = facts_.verdict->outcome == sched::Outcome::kPlaced;
    set(condition::kQueued, true, queued_reason(*facts_.verdict),
        is_placed ? "its GPUs are being assigned" : facts_.verdict->told.message);
  }

  void not_queued(bool over) {
    if (over) return set(condition::kQueued, false, reason::kReleased, "finished");
    if (held() > 0) return set(condition::kQueued, false, reason::kPlaced, "has GPUs");
    set(condition::kQueued, false, reason::kSuspended, "suspended");
  }

  std::string deletion() const {
    if (held() > 0) return "is being deleted: its workers stop, then it gives its GPUs back";
    if (!facts_.pods_left.empty())
      return "is being deleted: waits until its pods have ended: " + pods_left();
    return "is being deleted: holds nothing any more; while it is still there, its "
           "metadata.finalizers say for whom";
  }

  static std::string_view queued_reason(const JobVerdict& verdict) {
    if (verdict.outcome == sched::Outcome::kNever) return reason::kNeverFits;
    switch (verdict.reason) {
      case sched::Reason::kWaitingForRelease:
        return reason::kWaitingForRelease;
      case sched::Reason::kQueueLimit:
        return reason::kQueueLimit;
      case sched::Reason::kLoadLimit:
        return reason::kLoadLimit;
      case sched::Reason::kOthersNotPreemptible:
        return reason::kOthersNotPreemptible;
      case sched::Reason::kGuaranteeFull:
        return reason::kGuaranteeFull;
      case sched::Reason::kQueueUnknown:
        return reason::kQueueNotFound;
      case sched::Reason::kQueueForbidden:
        return reason::kQueueForbidden;
      case sched::Reason::kNodesAvoided:
      case sched::Reason::kEveryNodeAvoided:
        return reason::kNodesAvoided;
      case sched::Reason::kNodesUnavailable:
        return reason::kNodesUnavailable;
      case sched::Reason::kRefused:  // by cluster_view, which names the reason
        return why_refused(verdict.told.reason);
      case sched::Reason::kPlaced:
      case sched::Reason::kQueueClosed:
      case sched::Reason::kNoAllowedSize:
      case sched::Reason::kExceedsCluster:
      case sched::Reason::kInsufficientGpus:
      case sched::Reason::kBehind:
      case sched::Reason::kCellsFull:
      case sched::Reason::kNodeLeaves:
        return reason::kWaitingForGpus;
    }
    return reason::kWaitingForGpus;
  }

  static std::string_view why_refused(const std::string& as) {
    for (const std::string_view why :
         {reason::kNeverFits, reason::kClaimNotFound, reason::kClaimsDenied, reason::kClaimLost,
          reason::kClaimNotBound, reason::kClaimInUse, reason::kStorageClassNotFound})
      if (as == why) return why;
    return reason::kWaitingForGpus;
  }

  void running(bool over) {
    if (over || held() == 0) {
      return set(condition::kRunning, false, reason::kStopped, over ? "finished" : "holds no GPUs");
    }
    if (is_stepping()) {
      if (!status_.start_time) status_.start_time = facts_.now;
      return set(
          condition::kRunning, true, reason::kTraining,
          fmt::format("{}, generation {}", counted(members(), "worker"), facts_.view->generation));
    }
    if (is(Phase::kRecovering)) return;  // for a moment; Recovering says so
    if (is(Phase::kParked)) {
      return set(condition::kRunning, false, reason::kParked, facts_.view->reason);
    }
    if (!facts_.start_problems.empty()) {  // said of a job that never ran, too
      return put(condition::kRunning, false, reason::kPodsStarting, facts_.start_problems);
    }
    set(condition::kRunning, false, reason::kPodsStarting,
        facts_.view && !facts_.view->reason.empty()
            ? facts_.view->reason
            : fmt::format(
                  "{} {}",
                  counted_of(facts_.pods_running, job_.status.allocation->pods.size(), "pod"),
                  agreeing(facts_.pods_running, "runs", "run")));
  }

  void changing(bool over) {
    const bool switching = !over && is(Phase::kSwitching);
    set(condition::kRescaling, switching, switching ? rescale_reason() : reason::kSettled,
        switching ? facts_.view->reason : "no change of membership is under way");
    const bool recovering = !over && (is(Phase::kRecovering) || is(Phase::kParked));
    set(condition::kRecovering, recovering, recovering ? failure_reason() : reason::kRecovered,
        recovering      ? facts_.view->reason
        : is_stepping() ? "trains again"
                        : "no recovery is under way");
    if (!over && facts_.view && !facts_.view->checkpoint_failing.empty())
      return set(condition::kDegraded, true, reason::kCheckpointFailed,
                 "holds its state and tries again to write it: " + facts_.view->checkpoint_failing);
    if (!over && facts_.view && !facts_.view->checkpoint_unread.empty())
      return set(condition::kDegraded, true, reason::kCheckpointFailed,
                 "waits for the checkpoints and asks again: " + facts_.view->checkpoint_unread);
    const bool is_script = job_.spec.runtime == api::Runtime::kPytorch;
    if (!over && is_script && facts_.view && !facts_.view->idle_process.empty())
      return set(condition::kDegraded, true, reason::kNoJobYet,
                 "the script has made no rubato.Job yet, or does not iterate over it: " +
                     facts_.view->idle_process);
    if (over || !is_stepping() || members() >= held())
      return set(condition::kDegraded, false, reason::kRecovered,
                 over            ? "finished"
                 : is_stepping() ? "all allocated GPUs train"
                                 : "takes no step now");
    set(condition::kDegraded, true, reason::kFewerThanAllocated,
        fmt::format("{} {}{}{}", counted_of(members(), held(), "allocated GPU"),
                    agreeing(members(), "trains", "train"),
                    facts_.start_problems.empty() ? "" : "; ", facts_.start_problems));
  }

  std::string_view rescale_reason() const {
    return facts_.view->shrinks ? reason::kShrink : reason::kGrow;
  }

  std::string_view failure_reason() const {
    const std::string& why = facts_.view->recovers_from;
    if (why.empty()) return reason::kParked;  // a new leader does not know since when
    for (const std::string_view told :
         {reason::kPodDeleted, reason::kLinkFailed, reason::kSuspending, reason::kResumed,
          reason::kCheckpointFailed, reason::kCheckpointDamaged, std::string_view("DataDamaged"),
          std::string_view("DataUnreadable"), std::string_view("DataNotFound"),
          std::string_view("DataInvalid"), std::string_view("DatasetChanged"),
          std::string_view("ProgramFailed")})
      if (why == told) return told;
    if (why == "Stuck") return reason::kStepStalled;
    if (why == "AgentLost" || why == "Silent") return reason::kNodeLost;
    if (why == "Diverged") return reason::kStatesDiffer;
    for (const std::string_view end : {"Crash", "Killed", "Error", "OutOfMemory", "Retired"})
      if (why == end) return reason::kWorkerCrashed;
    return reason::kStepFailed;
  }

  void display() {
    api::Display display = job_.status.display.value_or(api::Display{});
    const auto& gpus = job_.spec.gpus;
    display.gpus = fmt::format("{}/{}", is_stepping() ? members() : held(),
                               gpus.min == gpus.max ? fmt::format("{}", gpus.max)
                                                    : fmt::format("{}-{}", gpus.min, gpus.max));
    std::set<std::string> types;
    if (job_.status.allocation) {
      for (const auto& pod : job_.status.allocation->pods) types.insert(pod.gpu_type);
    }
    display.type = types.empty() ? "" : types.size() == 1 ? *types.begin() : "mixed";
    if (status_.progress && status_.progress->steps > 0) {
      display.progress = fmt::format("{}%", status_.progress->percentage);
    } else if (status_.progress && status_.progress->step > 0) {
      display.progress = counted(status_.progress->step, "step");
    }
    if (status_.progress && status_.progress->loss)
      display.loss = fmt::format("{:.3f}", *status_.progress->loss);
    if (status_.performance && status_.performance->goodput)
      display.goodput = fmt::format("{:.2f}", *status_.performance->goodput);
    if (is_stepping() && status_.performance && status_.performance->tokens_per_second > 0)
      display.tokens_per_second = rounded(status_.performance->tokens_per_second);
    else if (!is_taken_over())
      display.tokens_per_second.clear();
    status_.display = std::move(display);
  }

  // In the order of state_of(). A state that is no condition's being True has a reason of its own.
  std::string state_reason() const {
    for (const std::string_view own : {reason::kTerminating, reason::kSuspending})
      if (status_.state == own) return std::string(own);
    for (const std::string_view type :
         {condition::kFailed, condition::kComplete, condition::kSuspended, condition::kRecovering,
          condition::kRescaling, condition::kRunning}) {
      if (api::is_true(status_.conditions, type))
        return api::find_condition(status_.conditions, type)->reason;
    }
    if (api::is_true(status_.conditions, condition::kAllocated))
      return std::string(reason::kPodsStarting);
    const api::Condition* queued = api::find_condition(status_.conditions, condition::kQueued);
    return queued == nullptr ? "" : queued->reason;
  }

  const JobFacts& facts_;
  const api::TrainingJob& job_;
  api::TrainingJobStatus status_;
};

}  // namespace

api::TrainingJobStatus status_of(const JobFacts& facts) { return Builder(facts).run(); }

}  // namespace rubato::control
