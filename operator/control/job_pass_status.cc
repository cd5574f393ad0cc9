// What a reconcile says: status, written only where it changed, and events on transitions.
#include "common/words.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "operator/control/job_history.h"
#include "operator/control/job_pass.h"
#include "operator/control/job_training.h"
#include "operator/control/pod_failures.h"
#include "operator/control/worker_pod.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

using coordinator::Phase;
using json::Value;

namespace {
// Of waiting: it does not end by itself.
bool is_for_its_owner(std::string_view why) {
  namespace reason = api::reason;
  return why == reason::kClaimNotFound || why == reason::kClaimsDenied ||
         why == reason::kClaimLost || why == reason::kClaimNotBound || why == reason::kClaimInUse ||
         why == reason::kStorageClassNotFound || why == reason::kNodesRefused;
}

constexpr const char* kRescales = "rescales";

std::string count_of(const api::Rescales& rescales) { return std::to_string(rescales.count); }

// What makes a transition. Each damaged checkpoint is one, though the condition stays True.
std::string told_of(const api::Condition& condition) {
  const bool is_true = condition.status == api::ConditionStatus::kTrue;
  std::string told = (is_true ? "+" : "-") + condition.reason;
  const bool is_each_told = condition.type == api::condition::kCheckpointUnusable ||
                            condition.type == api::condition::kDiverged;
  if (is_true && is_each_told) told += condition.message;
  return told;
}
}  // namespace

JobFacts JobPass::facts() const {
  JobFacts facts;
  facts.job = &job_;
  facts.view = view_;
  facts.verdict = d_.memory.verdict(job_.meta.uid);
  facts.profile = object_->profile;
  facts.failed_reason = failed_reason_;
  facts.failed_message = failed_message_;
  facts.queued_reason = queued_reason_;
  facts.queued_message = queued_message_;
  if (const auto held = d_.memory.held_back(job_.meta.uid, now());
      held && facts.queued_reason.empty()) {
    facts.queued_reason = held->reason;
    facts.queued_message = to_text(*held, now(), wall());
  }
  if (!object_->problem.empty()) {
    facts.queued_reason = std::string(api::reason::kInvalidSpec);
    facts.queued_message = object_->problem;
  }
  facts.avoided_nodes = avoided_nodes_;
  if (const auto refusal = refused_by_all(); refusal && facts.queued_reason.empty()) {
    facts.queued_reason = std::string(api::reason::kNodesRefused);
    facts.queued_message = fmt::format(
        "every node that it may use refused its workers (image {}) for {}: {}; the next is tried "
        "again at {}, and the job fails at {} if all refuse until then",
        worker_image(job_), refusal->reason, refusal->text, to_rfc3339(refusal->next_try),
        to_rfc3339(refusal->fails_at));
  }
  facts.own_failures = own_failures();
  facts.is_tried = is_tried_;
  facts.forbidden = forbidden_;
  facts.priority = priority_;
  facts.start_problems = start_problems();
  facts.now = wall();
  facts.finishes_a_stop = finishes_a_stop(job_, view_ ? &*view_ : nullptr);
  for (const auto& pod : pods_) {
    if (!pod->is_finished()) facts.pods_left.push_back(pod->meta.name);
    if (pod->phase == kube::PodPhase::kRunning && is_allocated(pod->meta.name))
      ++facts.pods_running;
  }
  if (view_ && !view_->changes.empty() && view_->changes.back().generation == view_->generation) {
    std::set<std::string> members;
    for (const auto& member : view_->members) members.insert(member.pod);
    facts.newest_pod_made = d_.memory.newest_made(job_.meta.uid, view_->generation, members);
  }
  if (view_ && view_->since != MonoTime{}) {
    facts.gpu_seconds = d_.memory.gpu_seconds(job_.meta.uid, gpu_seconds_of(job_.status),
                                              view_->since, view_->gpu_seconds);
  }
  return facts;
}

// Whole fields of the status, of this very job: a write that comes late may find another one under
// the name.
Value JobPass::status_operations(const Value& changed, const Value& wanted) const {
  const auto operation = [](const char* op, const std::string& path, Value value) {
    return Value::object({{"op", op}, {"path", path}, {"value", std::move(value)}});
  };
  Value all = Value::array({operation("test", "/metadata/uid", job_.meta.uid)});
  if (!object_->status.is_object()) {  // of the first write: nobody has made one meanwhile
    all.push_back(operation("test", "/metadata/resourceVersion", job_.meta.resource_version));
    all.push_back(operation("add", "/status", wanted));
    return all;
  }
  for (const auto& [name, value] : changed.members()) {
    const std::string path = "/status/" + name;
    all.push_back(operation("add", path, wanted[name]));
    // It may be gone already, which is an error for who removes it.
    if (value.is_null()) all.push_back(Value::object({{"op", "remove"}, {"path", path}}));
  }
  return all;
}

Status JobPass::write_status() {
  const Duration period = progress_period(d_.coordinator.jobs(), d_.config.progress_period);
  if (view_ && (view_->phase == Phase::kTraining || view_->phase == Phase::kSwitching))
    again_ = std::min(again_, period);  // its steps do not wake us
  if (view_ && view_->phase == Phase::kTraining) d_.memory.note_started(job_.meta.uid);
  emit_start_problems();
  emit_pod_failures();
  emit_unreadable();
  api::TrainingJobStatus wanted = status_of(facts());
  // Their writers are others; our copy may be old.
  wanted.allocation.reset();
  wanted.membership.reset();
  wanted.installation = d_.installation.name;
  wanted.credentials = credentials_;
  Value seen = object_->status.is_object() ? object_->status : Value::object();
  seen.erase("allocation");
  seen.erase("membership");
  const Value encoded = api::encode(wanted);
  const Value patch = d_.memory.status_diff().patch(api::kTrainingJob, seen, encoded, now());
  const bool only_progress =
      std::all_of(patch.members().begin(), patch.members().end(), [](const json::Member& member) {
        return member.first == "progress" || member.first == "performance" ||
               member.first == "display" || member.first == "usefulGPUSeconds" ||
               member.first == "lostGPUSeconds" || member.first == "gpuSecondsByType";
      });
  note_what_was_told(wanted);
  if (patch.size() != 0 &&
      (!only_progress || d_.memory.may_write_progress(job_.meta.uid, now(), period))) {
    const auto written =
        d_.client.patch(api::kTrainingJob, key_, kube::PatchType::kJson,
                        status_operations(patch, encoded), {.subresource = "status"});
    if (!written.ok() && written.error().code() != Code::kNotFound)
      return written.error().in("writing status");
    if (written.ok()) {
      d_.memory.status_diff().note_written(api::kTrainingJob, patch, encoded, (*written)["status"],
                                           now());
      d_.caches.jobs.wrote(*written);
    }
  }
  emit_transitions(wanted);
  return ok();
}

void JobPass::note_what_was_told(const api::TrainingJobStatus& wanted) {
  for (const api::Condition& now : wanted.conditions) {
    const auto* before = api::find_condition(job_.status.conditions, now.type);
    d_.memory.note_told_before(job_.meta.uid, now.type, before != nullptr ? told_of(*before) : "");
  }
  d_.memory.note_told_before(job_.meta.uid, kRescales,
                             job_.status.rescales ? count_of(*job_.status.rescales) : "");
}

void JobPass::emit_transitions(const api::TrainingJobStatus& wanted) {
  for (const api::Condition& now : wanted.conditions) {
    if (!d_.memory.is_news(job_.meta.uid, now.type, told_of(now))) continue;
    const bool is_true = now.status == api::ConditionStatus::kTrue;
    const bool is_told = is_true || now.reason == api::reason::kSuspending;
    if (!is_told) continue;
    const bool warning =
        now.type == api::condition::kFailed || now.type == api::condition::kRecovering ||
        now.type == api::condition::kDiverged || now.type == api::condition::kCheckpointNotShared ||
        now.type == api::condition::kCheckpointUnusable ||
        now.type == api::condition::kDeadlineAtRisk ||
        now.reason == api::reason::kCheckpointFailed || now.reason == api::reason::kNoJobYet ||
        is_for_its_owner(now.reason);
    const bool is_final =
        now.type == api::condition::kComplete || now.type == api::condition::kFailed;
    emit({warning ? kube::EventLevel::kWarning : kube::EventLevel::kNormal, now.reason, now.type,
          now.message, is_final});
  }
  if (wanted.rescales && wanted.rescales->last &&
      d_.memory.is_news(job_.meta.uid, kRescales, count_of(*wanted.rescales))) {
    const api::Rescale& last = *wanted.rescales->last;
    emit({kube::EventLevel::kNormal, "Rescaled", "Rescaling",
          fmt::format("from {} to {}, {}; stall {:.2f} s", last.from, counted(last.to, "worker"),
                      last.reason, last.stall_seconds)});
  }
}

// Once for each pod: its reason goes to and fro while the kubelet tries again.
void JobPass::emit_start_problems() {
  for (const auto& pod : pods_) {
    const std::string why = start_problem(*pod);
    if (why.empty() || !d_.memory.say_once(job_.meta.uid, pod->meta.uid)) continue;
    emit({kube::EventLevel::kWarning, "PodCannotStart", "Starting",
          fmt::format("pod {} on node {}: {}; see kubectl describe pod {}", pod->meta.name,
                      pod->node_name, why, pod->meta.name)});
  }
}

// While the allocation has them: then each is told by the one leader that sees it fail.
void JobPass::emit_pod_failures() {
  for (const auto& pod : pods_) {
    if (!is_allocated(pod->meta.name) || !failed_of_itself(*pod)) continue;
    if (!d_.memory.say_once(job_.meta.uid, pod->meta.uid + " failed")) continue;
    emit({kube::EventLevel::kWarning, "PodFailed", "Training",
          fmt::format("{}; see kubectl logs {}", describe_failure(*pod), pod->meta.name)});
  }
}

// Of a job that waits the condition Queued says so.
void JobPass::emit_unreadable() {
  if (job_.unreadable.empty() || allocated_.empty() ||
      !d_.memory.say_once(job_.meta.uid, job_.unreadable))
    return;
  const bool is_led = view_ || can_be_led(job_);
  emit({kube::EventLevel::kWarning, std::string(api::reason::kInvalidSpec), "Reading",
        object_->problem + (is_led ? "; until then it goes on, and gets no new pods"
                                   : "; until then nobody leads it: no lost worker is left out, "
                                     "its progress and its end are not seen")});
}

void JobPass::emit(const kube::EventText& text) {
  d_.events.emit(
      {std::string(api::kApiVersion), "TrainingJob", key_.ns, key_.name, job_.meta.uid, ""}, text);
}

}  // namespace rubato::control
