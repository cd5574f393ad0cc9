#include "operator/control/job_pass.h"

#include "common/log.h"
#include "kube/errors.h"
#include "operator/api/resources.h"
#include "operator/control/job_secret.h"
#include "operator/control/job_training.h"
#include "operator/control/node_fit.h"
#include "operator/control/plan_executor.h"
#include "operator/control/pod_failures.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

namespace {
using coordinator::Phase;
using json::Value;

constexpr auto kWhileStopping = 1s;  // how soon to look again while a stop is under way

bool any_lost(const coordinator::PodFailure& failure) {
  return failure.reason == "AgentLost" || failure.reason == "Silent";
}
}  // namespace

JobPass::JobPass(JobControllerDependencies& dependencies, std::shared_ptr<const JobObject> object,
                 std::int64_t leader)
    : d_(dependencies),
      object_(std::move(object)),
      job_(object_->job),
      leader_(leader),
      key_{job_.meta.ns, job_.meta.name},
      pods_(d_.caches.pods_of(job_.meta.uid)),
      lost_(d_.memory.lost_pods(job_.meta.uid)),
      given_up_(d_.memory.given_up(job_.meta.uid)),
      view_(d_.coordinator.view(job_.meta.uid)),
      avoided_nodes_(job_.status.avoided_nodes),
      credentials_(job_.status.credentials),
      priority_(job_.status.priority) {
  for (const auto& pod : pods_) pods_by_name_[pod->meta.name] = pod.get();
  if (job_.status.allocation) {
    for (const auto& pod : job_.status.allocation->pods) allocated_[pod.name] = &pod;
  }
  if (view_) {
    for (const auto& member : view_->members) member_uids_.insert(member.pod_uid);
  }
}

kube::Outcome JobPass::run() {
  // 1. Nothing is made before the job is ours and the finalizer stands.
  if (!job_.meta.is_deleting()) {
    bool written = false;
    if (const Status claimed = claim(written); !claimed.ok()) {
      go_on(claimed);
      return outcome();
    }
    if (written) return kube::done();  // the change brings us back
  } else {
    deleted_since_ = d_.memory.deleted_since(job_.meta.uid, now());
  }
  if (api::is_finished(job_.status.conditions) && !job_.meta.is_deleting()) {
    return clean_up_finished();
  }
  // What goes wrong from here on is no reason to leave the rest, or the status without a word.
  go_on(check_template());
  // 2. What is wanted now?
  decide();
  if (intent_ == Intent::kTrain && view_ && view_->end == Phase::kStopped) {
    d_.coordinator.forget(job_.meta.uid);  // it stopped as asked; now it begins anew
    view_.reset();
    member_uids_.clear();
  }
  note_losses();
  d_.memory.forget_lost(job_.meta.uid, [&](const std::string& lost) {
    const auto is_allocated_pod = [&](const auto& each) { return lost_name(*each.second) == lost; };
    return std::ranges::any_of(pods_, [&](const auto& pod) { return pod->meta.uid == lost; }) ||
           std::ranges::any_of(allocated_, is_allocated_pod);
  });
  d_.memory.forget_made(job_.meta.uid, [&](const std::string& pod) { return is_allocated(pod); });
  // 3. Make it so. Of a spec that cannot be read no pod is made. What runs goes on, and is led
  // where all can be read that its coordinator is told.
  if (intent_ == Intent::kTrain && job_.unreadable.empty()) {
    go_on(ensure_pods());
    give_up_useless();
  }
  if (intent_ != Intent::kTrain || can_be_led(job_)) instruct_coordinator();
  go_on(remove_left_pods());
  if (intent_ != Intent::kTrain) {
    go_on(finish_stop());
    again_ = std::min<Duration>(again_, kWhileStopping);
  }
  if (job_.meta.is_deleting()) {
    bool gone = false;
    go_on(finish_teardown(gone));
    if (gone) return all_.ok() ? kube::done() : outcome();
  }
  // 4. Say so.
  go_on(write_status());
  return outcome();
}

// The first thing that went wrong counts, but one that is worth trying again before one that is
// not.
void JobPass::go_on(const Status& step) {
  const bool counts = all_.ok() || kube::Outcome(all_).kind == kube::Outcome::Kind::kTerminal;
  if (!step.ok() && counts) all_ = step;
}

// What is wrong as it is may be right later, by a policy or a webhook that changes: it is tried
// again, at the pace of all that is refused, however soon the other steps want to look again.
kube::Outcome JobPass::outcome() const {
  if (all_.ok()) return kube::Outcome::requeue_after(again_);
  kube::Outcome failed(all_);
  if (failed.kind == kube::Outcome::Kind::kTerminal) {
    failed.kind = kube::Outcome::Kind::kError;
    failed.after = std::max<Duration>(again_, kRefusalPause);
  }
  return failed;
}

Status JobPass::claim(bool& written) {
  const bool has_finalizer = job_.meta.has_finalizer(api::kFinalizer);
  if (has_finalizer && d_.installation.owns(object_->meta)) return ok();
  Value metadata = Value::object(
      {{"labels", Value::object({{std::string(api::kLabelInstallation), d_.installation.name}})},
       {"resourceVersion", job_.meta.resource_version}});
  if (!has_finalizer) {
    Value finalizers = Value::array();
    for (const std::string& other : job_.meta.finalizers) finalizers.push_back(other);
    finalizers.push_back(api::kFinalizer);
    metadata.set("finalizers", std::move(finalizers));
  }
  const Value patch = Value::object({{"metadata", std::move(metadata)}});
  const auto result = d_.client.patch(api::kTrainingJob, key_, kube::PatchType::kMerge, patch);
  if (!result.ok()) return result.error().in("adding finalizer and installation");
  d_.caches.jobs.wrote(*result);
  written = true;
  return ok();
}

void JobPass::decide() {
  IntentFacts facts;
  facts.job = &job_;
  facts.view = view_ ? &*view_ : nullptr;
  if (!failure().empty()) facts.failure = failed_message_;
  facts.pods_left =
      std::any_of(pods_.begin(), pods_.end(), [](const auto& pod) { return !pod->is_finished(); });
  facts.now = d_.executor.now();
  Decision decision = decide_intent(facts);
  intent_ = decision.intent;
  stop_reason_ = std::move(decision.stop_reason);
  queued_reason_ = std::move(decision.queued_reason);
  queued_message_ = std::move(decision.queued_message);
  if (!view_ || !view_->parked_since) return;
  const Duration left =
      *view_->parked_since + std::chrono::seconds(job_.spec.park_seconds) - facts.now;
  if (left >= 0s) again_ = std::min<Duration>(again_, left + 1ms);  // nothing else may wake us
}

// Agents that fell silent: their pods leave the allocation, their nodes get no new pod for now.
void JobPass::note_losses() {
  for (const auto& pod : pods_) {
    if (pod->is_finished() && is_allocated(pod->meta.name) && intent_ == Intent::kTrain) {
      d_.memory.note_ended_early(job_.meta.uid, pod->meta.uid, describe_end(*pod), now());
    }
  }
  if (!view_) return;
  for (const auto& failure : view_->failures) {
    if (!any_lost(failure) || is_member(failure.pod_uid) || lost_.contains(failure.pod_uid))
      continue;
    const bool back = std::find(view_->ready_pods.begin(), view_->ready_pods.end(), failure.pod) !=
                      view_->ready_pods.end();
    if (back) continue;
    d_.memory.note_lost(job_.meta.uid, failure.pod_uid);
    lost_.insert(failure.pod_uid);
    if (const kube::Pod* pod = find(failure.pod); pod && !pod->node_name.empty()) {
      d_.memory.suspect_node(pod->node_name, now(), [&] {
        return d_.caches.nodes.store().get({"", pod->node_name}) != nullptr;
      });
      LOG_WARNING("control", "{}: pod {} on node {} is lost: {}", to_string(key_), failure.pod,
                  pod->node_name, failure.message);
    }
    d_.wake_scheduler();
  }
}

void JobPass::instruct_coordinator() {
  if (pods_.empty() && (!job_.status.allocation || job_.status.allocation->pods.empty())) {
    if (view_ && intent_ == Intent::kTrain) d_.coordinator.forget(job_.meta.uid);  // starts afresh
    return;
  }
  coordinator::Wish wish;
  wish.job = key_;
  wish.uid = job_.meta.uid;
  put_training(job_, wish);
  wish.min_workers = static_cast<std::uint32_t>(job_.spec.gpus.min);
  wish.start_workers = wish.min_workers;
  std::vector<std::pair<std::int64_t, coordinator::Wish::Pod>> ordered;
  for (const auto& pod : pods_) {
    if (pod->is_finished() || pod->node_name.empty() || was_lost(*pod)) continue;
    coordinator::Wish::Pod wanted;
    wanted.name = pod->meta.name;
    wanted.uid = pod->meta.uid;
    wanted.node = pod->node_name;
    wanted.slots = static_cast<std::uint32_t>(job_.spec.gpus.per_pod);
    wanted.leaving = !is_allocated(pod->meta.name) || pod->meta.deleting.has_value();
    if (const auto allocated = allocated_.find(wanted.name); allocated != allocated_.end())
      wanted.gpu_type = allocated->second->gpu_type;
    const auto ordinal = kube::find(pod->meta.labels, api::kLabelOrdinal).value_or("0");
    ordered.emplace_back(std::strtoll(std::string(ordinal).c_str(), nullptr, 10),
                         std::move(wanted));
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [ordinal, pod] : ordered) wish.pods.push_back(std::move(pod));
  wish.stop = intent_ != Intent::kTrain;
  wish.stop_reason = stop_reason_;
  wish.grace = std::chrono::seconds(job_.spec.grace_period_seconds);
  const std::int64_t seen = job_.status.progress ? job_.status.progress->step : 0;
  d_.coordinator.ensure(wish, static_cast<std::uint64_t>(std::max<std::int64_t>(seen, 0)));
}

// The workers have stopped (or had their grace): the GPUs go back.
Status JobPass::finish_stop() {
  if (!stop_is_over()) return ok();
  return holds_gpus() ? release(stop_reason_) : ok();
}

bool JobPass::stop_is_over() const {
  if (!view_ || view_->members.empty()) return true;
  if (view_->phase == Phase::kStopped || view_->phase == Phase::kFailed ||
      view_->phase == Phase::kFinished) {
    return true;
  }
  if (is_overdue()) return true;
  return view_->stop_since &&
         now() - *view_->stop_since > std::chrono::seconds(job_.spec.grace_period_seconds);
}

// Not counted from deletionTimestamp, which is of another clock.
bool JobPass::is_overdue() const {
  return deleted_since_ &&
         now() - *deleted_since_ >
             std::chrono::seconds(job_.spec.grace_period_seconds) + d_.config.teardown_extra;
}

Status JobPass::finish_teardown(bool& gone) {
  const bool waited_enough = is_overdue();
  const bool pods_left = std::any_of(pods_.begin(), pods_.end(), [&](const auto& pod) {
    return !pod->is_finished() && !was_lost(*pod) && !is_on_lost_node(*pod);
  });
  if (!stop_is_over() || ((pods_left || holds_gpus()) && !waited_enough)) return ok();
  const bool has_ours = job_.meta.has_finalizer(api::kFinalizer);
  // Where another's finalizer keeps the object, what it says last must be true.
  const bool is_kept = std::ranges::any_of(
      job_.meta.finalizers, [](const std::string& other) { return other != api::kFinalizer; });
  const bool may_say = !waited_enough || !has_ours;
  if (is_kept && may_say && status_of(facts()).conditions != job_.status.conditions) return ok();
  if (has_ours) {
    Value finalizers = Value::array();
    for (const std::string& other : job_.meta.finalizers) {
      if (other != api::kFinalizer) finalizers.push_back(other);
    }
    const Value patch = Value::object(
        {{"metadata", Value::object({{"finalizers", std::move(finalizers)},
                                     {"resourceVersion", job_.meta.resource_version}})}});
    const auto result = d_.client.patch(api::kTrainingJob, key_, kube::PatchType::kMerge, patch);
    if (!result.ok() && result.error().code() != Code::kNotFound) {
      return result.error().in("removing the finalizer");
    }
  }
  if (holds_gpus()) return ok();  // while another keeps the object they stay promised
  d_.coordinator.forget(job_.meta.uid);
  d_.memory.forget_job(job_.meta.uid);
  gone = true;
  return ok();
}

// Complete or Failed: GPUs go back, workers that still run are ended, the object goes after its
// time to live. Pods that ended are kept: their logs are wanted.
kube::Outcome JobPass::clean_up_finished() {
  intent_ = Intent::kOver;
  stop_reason_ = "the job is finished";
  if (holds_gpus()) go_on(release(stop_reason_));
  const bool failed = api::is_true(job_.status.conditions, api::condition::kFailed);
  const api::Condition* end = api::find_condition(
      job_.status.conditions, failed ? api::condition::kFailed : api::condition::kComplete);
  const WallTime ended = end->last_transition_time.value_or(wall());
  const bool is_time_over =
      now() - d_.memory.finished_since(job_.meta.uid, now()) >= d_.config.teardown_extra;
  for (const auto& pod : pods_) {
    if (pod->is_finished() || pod->meta.deleting) continue;
    again_ = std::min<Duration>(again_, kWhileStopping);  // until it is gone
    // Workers of a complete job have been told to go and end by themselves.
    if (is_time_over || was_lost(*pod)) go_on(remove_pod(*pod));
  }
  if (std::ranges::all_of(pods_, [](const auto& pod) { return pod->is_finished(); })) {
    d_.coordinator.forget(job_.meta.uid);
    go_on(drop_credentials());
  }
  go_on(write_status());
  if (const auto& stays = job_.spec.ttl_seconds_after_finished) {
    const Duration left = ended + std::chrono::seconds(*stays) - wall();
    if (left > 0s)
      again_ = std::min(left, again_);
    else
      go_on(d_.client.remove(api::kTrainingJob, key_, {.uid = job_.meta.uid}));
  }
  return outcome();
}

// It never trains again. Where the Secret may not be written (it is immutable, or a right is
// missing) it stays as it is, its certificate ends by itself, and it is tried again at pauses that
// double.
Status JobPass::drop_credentials() {
  if (!credentials_ || !d_.memory.may_tell(job_.meta.uid, "an empty Secret", now())) return ok();
  const Status emptied = empty_job_secret(d_.client, job_);
  if (emptied.ok()) {
    credentials_.reset();
    return ok();
  }
  LOG_WARNING("control", "{}: {}", to_string(key_), emptied.error().to_string());
  const bool is_refused =
      kube::is_forbidden(emptied.error()) || emptied.error().code() == Code::kInvalid;
  return is_refused ? ok() : emptied;
}

Status JobPass::release(const std::string& reason) {
  if (!d_.gate.begin_decision(job_.meta.uid)) {
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  api::Allocation none = released(job_, reason, leader_, wall());
  count_left(job_, pods_by_name_, none);
  const auto written = write_allocation(d_.client, job_, none);
  if (!written.ok() && kube::may_have_happened(written.error())) {
    d_.settle_later(job_, none);
  } else if (written.ok()) {
    d_.caches.jobs.wrote(*written);
    d_.gate.end_decision(job_.meta.uid, none.epoch);
  } else {
    d_.gate.end_decision(job_.meta.uid);
  }
  if (!written.ok() && written.error().code() != Code::kNotFound) {
    return written.error().in("giving GPUs back");
  }
  d_.wake_scheduler();
  return ok();
}

bool JobPass::was_lost(const kube::Pod& pod) const { return lost_.contains(pod.meta.uid); }

// Nobody there will confirm its end soon. A new leader sees no other sign of it: what earlier ones
// had lost it does not know.
bool JobPass::is_on_lost_node(const kube::Pod& pod) const {
  if (pod.node_name.empty()) return false;
  const auto node = d_.caches.nodes.store().get({"", pod.node_name});
  if (!node) return true;
  const auto lease = d_.caches.leases.store().get({std::string(kNodeLeases), pod.node_name});
  std::optional<Renewal> renewal;
  if (lease) renewal = d_.memory.renewal(*lease, now(), wall());
  return !why_silent(*node, renewal ? &*renewal : nullptr, d_.memory.suspects(), now(), d_.config)
              .empty();
}

const kube::Pod* JobPass::find(const std::string& name) const {
  const auto found = pods_by_name_.find(name);
  return found == pods_by_name_.end() ? nullptr : found->second;
}

}  // namespace rubato::control
