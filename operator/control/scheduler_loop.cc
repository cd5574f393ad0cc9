#include "operator/control/scheduler_loop.h"

#include "common/check.h"
#include "common/log.h"
#include "common/planted.h"
#include "common/words.h"
#include "kube/errors.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "operator/control/cluster_status.h"
#include "operator/control/leaving_nodes.h"
#include "operator/control/plan_executor.h"
#include "operator/control/pod_failures.h"
#include "operator/control/unreleased_room.h"
#include "operator/coordinator/record_store.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::control {

namespace {
const std::vector<double> kRoundBuckets{0.0001, 0.001, 0.01, 0.1, 1, 10};
// Until a round that could not begin is tried again, whatever the policy's interval is.
constexpr auto kUndecidedPause = 1s;
}  // namespace

SchedulerLoop::SchedulerLoop(Dependencies dependencies)
    : d_(std::move(dependencies)),
      plan_check_(d_.metrics),
      profile_writer_(d_.client, d_.metrics),
      woken_(d_.executor.make_condition()) {}

void SchedulerLoop::start(std::int64_t leader) {
  leader_ = leader;
  task_ = d_.executor.spawn("scheduler", [this](const std::stop_token& stop) { run(stop); });
}

void SchedulerLoop::stop() {
  task_.request_stop();
  wake();
  task_.join();
}

void SchedulerLoop::wake() {
  std::lock_guard lock(mutex_);
  wake_ = true;
  woken_->notify_all();
}

void SchedulerLoop::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      const MonoTime next = d_.executor.now() + d_.policy.get()->round_interval;
      woken_->wait_until(lock, std::min(next, wake_at_),
                         [&] { return wake_ || stop.stop_requested(); });
      wake_ = false;
    }
    if (stop.stop_requested()) return;
    look_after_bindings();
    if (!d_.caches.has_synced())
      wake();  // what happened cannot be told before they are listed again: at the next turn
    else if (settle() && take_stock() && has_seen_own_writes() && has_taken_over())
      round();
    else
      wake_at_ = d_.executor.now() + kUndecidedPause;  // what they ask for may come without a word
    d_.executor.sleep_for(d_.config.round_spacing, stop);
  }
}

// From the API server: a store that was restored may never come to the version that was written.
bool SchedulerLoop::is_absent(const std::string& uid, const kube::Key& key) const {
  const auto live = d_.client.get(api::kTrainingJob, key);
  if (!live.ok()) return live.error().code() == Code::kNotFound;
  const auto object = JobObject::decode(*live);
  return object.ok() && object->meta.uid != uid;
}

bool SchedulerLoop::has_seen_own_writes() const {
  if (planted(Bug::kForgetOwnWrites)) return true;
  return std::all_of(written_.begin(), written_.end(), [&](const auto& entry) {
    const auto& [uid, written] = entry;
    const auto job = d_.caches.jobs.store().get(written.job);
    // Absent, or another of the same name: gone by now, or, in an old cache, not there yet.
    if (!job || job->job.meta.uid != uid)
      return d_.caches.jobs.store().has_seen(written.version, written.job.ns) ||
             is_absent(uid, written.job);
    const auto& allocation = job->job.status.allocation;
    return allocation && allocation->epoch >= written.epoch;
  });
}

void SchedulerLoop::settle_later(const api::TrainingJob& job, const api::Allocation& tried) {
  {
    std::lock_guard lock(mutex_);
    handed_.insert_or_assign({job.meta.ns, job.meta.name}, Unsettled{job, tried, {}});
  }
  wake();
}

// True when no decision is in doubt any more.
bool SchedulerLoop::settle() {
  {
    std::lock_guard lock(mutex_);
    handed_.merge(unsettled_);
    unsettled_ = std::exchange(handed_, {});
  }
  for (auto at = unsettled_.begin(); at != unsettled_.end();) {
    if (settle(at->first, at->second)) {
      at = unsettled_.erase(at);
    } else {
      ++at;
    }
  }
  return unsettled_.empty();
}

bool SchedulerLoop::settle(const kube::Key& key, const Unsettled& doubt) {
  const auto live = d_.client.get(api::kTrainingJob, key);
  const bool is_left_alone = d_.caches.jobs.denied().contains(key.ns);
  if (!live.ok() && live.error().code() != Code::kNotFound && !is_left_alone) return false;
  const auto now = live.ok() ? api::decode_training_job(*live) : live.error();
  if (!now.ok() || now->meta.uid != doubt.job.meta.uid) {
    d_.gate.end_decision(doubt.job.meta.uid);
    return true;
  }
  const auto& stands = now->status.allocation;
  if (stands && stands->epoch >= doubt.tried.epoch) {
    written_[now->meta.uid] = {key, stands->epoch, now->meta.resource_version};
    d_.gate.end_decision(now->meta.uid, stands->epoch);
    const bool ours = stands->epoch == doubt.tried.epoch &&
                      stands->leader_transition == doubt.tried.leader_transition &&
                      stands->pods == doubt.tried.pods;
    if (ours && doubt.kind) tell(doubt.job, doubt.tried, *doubt.kind);
    return true;
  }
  // Not done; but it may still be on its way.
  auto latest = shut_out(*now);
  if (!latest.ok()) return false;  // looked at again in the next round
  d_.gate.end_decision(now->meta.uid, latest->epoch);
  written_[now->meta.uid] = std::move(latest).value();
  return true;
}

void SchedulerLoop::round() {
  const MonoTime began = d_.executor.now();
  World world =
      d_.caches.snapshot(d_.memory, d_.gate, d_.coordinator, began, d_.executor.clock().wall());
  left_alone_.merge(d_.caches.jobs.denied());  // before the store has none of them
  std::erase_if(world.jobs,
                [&](const auto& job) { return left_alone_.contains(job->job.meta.ns); });
  if (const auto until = awaited_room_.wait_until(world, d_.config.room_patience)) {
    wake_at_ = *until;
    return;
  }
  load_policy(world);
  const auto policy = d_.policy.get();
  world.gang_start = policy->gang_start;
  if (policy->growth_pause > 0s)
    world.grown_lately = d_.memory.grown_since(world.now - policy->growth_pause);
  const sched::Snapshot snapshot{capture(world, d_.config), policy->plan};
  const auto decides = sched::make_policy(policy->plan.policy, policy->plan.parameters);
  CHECK(decides.ok());  // load_policy refuses others
  const sched::Plan plan = sched::make_plan(snapshot.state, **decides, snapshot.policy);
  const auto next = (*decides)->next_wake(snapshot.state);
  const std::int64_t longest_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(policy->round_interval).count();
  wake_at_ = next ? began + std::chrono::milliseconds(std::clamp<std::int64_t>(
                                *next - snapshot.state.now_ms, 0, longest_ms))
                  : MonoTime::max();
  look_at_maintenances(world);
  d_.metrics
      .histogram("rubato_schedule_cycle_seconds", "Time of a scheduling decision.", {},
                 kRoundBuckets)
      .observe(std::chrono::duration<double>(d_.executor.now() - began).count());
  if (d_.record) d_.record(snapshot, plan);
  written_.clear();
  apply_all(plan.actions, snapshot.state, world);
  tell_verdicts(snapshot, plan);
  write_policies(d_.client, d_.memory.status_diff(), world, *policy, refused_, d_.installation);
  write_queues(d_.client, d_.memory.status_diff(), world, snapshot, plan, d_.installation);
  profile_writer_.look_at(world, d_.executor.now());
  plan_check_.look_at(snapshot, plan, d_.executor.now());
}

// A round comes when the next node is to be left. Who wrote a time that is none is told of it once.
void SchedulerLoop::look_at_maintenances(const World& world) {
  if (const auto next = next_leaving(world.nodes, world.wall, d_.config))
    wake_at_ = std::min(wake_at_, world.now + std::min<Duration>(*next - world.wall,
                                                                 d_.policy.get()->round_interval));
  std::map<std::string, std::string> unreadable;
  for (const auto& node : world.nodes) {
    const auto at = maintenance_of(*node);
    if (at.ok()) continue;
    const std::string& name = node->meta.name;
    const std::string& why = unreadable[name] = at.error().what();
    const auto told = unreadable_.find(name);
    if (told == unreadable_.end() || told->second != why)
      LOG_WARNING("scheduler",
                  "node {}: its annotation {} is not looked at: {}; a time such as "
                  "2026-12-01T10:00:00Z is expected",
                  name, kMaintenanceAt, why);
  }
  unreadable_ = std::move(unreadable);
}

void SchedulerLoop::load_policy(const World& world) {
  const auto found =
      std::find_if(world.policies.begin(), world.policies.end(),
                   [](const auto& object) { return object->meta.name == kPolicyInForce; });
  auto wanted = found == world.policies.end() ? Result<Policy>(policy_of(d_.config))
                                              : policy_of(d_.config, (*found)->policy.spec);
  refused_ = wanted.ok() ? "" : wanted.error().what();
  // What stays is what this leader loaded, or what the one before it had.
  if (!wanted.ok() && !loaded_policy_) wanted = policy_left(d_.config, (*found)->policy.status);
  loaded_policy_ = true;
  if (!wanted.ok() || *wanted == *d_.policy.get()) return;
  LOG_INFO("scheduler", "in force: {}", to_text(*wanted));
  if (!wanted->not_taken.empty())
    LOG_WARNING("scheduler", "of the policy that was in force this release refuses: {}",
                wanted->not_taken);
  d_.policy.set(std::move(wanted).value());
}

// What one job lets go another may get in the same plan: it must have been let go for sure.
void SchedulerLoop::apply_all(const std::vector<sched::Action>& actions,
                              const sched::ClusterState& state, const World& world) {
  UnreleasedRoom unreleased(state);
  std::set<kube::Key> claimed;
  const auto apply_one = [&](const sched::Action& action) {
    const bool is_done = !unreleased.is_needed_by(action) &&
                         may_have_claims(action, world, claimed) && apply(action, world);
    if (!is_done) unreleased.note(action);
  };
  for (const sched::Action& action : actions)
    if (!action.remove.empty()) apply_one(action);
  for (const sched::Action& action : actions)
    if (action.remove.empty()) apply_one(action);
}

// The highest that a pod which is there, or an agent, names: where the store was restored from a
// backup, the job's own count may be behind it.
std::int64_t SchedulerLoop::named_ordinal(const api::TrainingJob& job) const {
  const auto view = d_.coordinator.view(job.meta.uid);
  std::int64_t highest = view ? view->highest_ordinal : -1;
  for (const auto& pod : d_.caches.pods_of(job.meta.uid)) {
    const auto ordinal = api::ordinal_of(job.meta.name, pod->meta.name);
    highest = std::max(highest, ordinal.value_or(-1));
  }
  return highest;
}

api::Allocation SchedulerLoop::after(const api::TrainingJob& job,
                                     const sched::Action& action) const {
  return allocation_after(job, action, leader_, d_.executor.clock().wall(), named_ordinal(job));
}

// Of two jobs that want the same exclusive claim, in one plan, the second decides anew.
bool SchedulerLoop::may_have_claims(const sched::Action& action, const World& world,
                                    std::set<kube::Key>& claimed) {
  if (action.add.empty()) return true;
  const auto found = std::find_if(world.jobs.begin(), world.jobs.end(),
                                  [&](const auto& job) { return job->job.meta.uid == action.job; });
  if (found == world.jobs.end()) return true;
  const auto claims = exclusive_claims((*found)->job, world, d_.config);
  if (std::any_of(claims.begin(), claims.end(),
                  [&](const kube::Key& key) { return claimed.contains(key); })) {
    wake();
    return false;
  }
  claimed.insert(claims.begin(), claims.end());
  return true;
}

// Before its first allocation, which tests the whole object, a job says in its membership who
// leads: by that the next leader knows which jobs a late decision of ours may be about. The cache
// is older than the object while a young job's status is written; others may have been stopped for
// this decision already, so that alone does not take it back.
Result<api::TrainingJob> SchedulerLoop::begin(const JobObject& object) {
  const api::TrainingJob& job = object.job;
  if (job.status.allocation || job.status.membership) return job;
  TRY(const json::Value written,
      coordinator::write_first_record(d_.client,
                                      {.key = object.meta.key(),
                                       .uid = job.meta.uid,
                                       .generation = job.meta.generation,
                                       .version = job.meta.resource_version,
                                       .has_status = object.status.is_object()},
                                      static_cast<std::uint64_t>(leader_)));
  return api::decode_training_job(written);
}

bool SchedulerLoop::apply(const sched::Action& action, const World& world) {
  const auto found = std::find_if(world.jobs.begin(), world.jobs.end(),
                                  [&](const auto& job) { return job->job.meta.uid == action.job; });
  if (found == world.jobs.end()) return true;
  const std::string& uid = (*found)->job.meta.uid;
  if (has_ended(world, uid)) return false;  // since it was captured: it gives all back by itself
  if (!d_.gate.begin_decision(uid)) return false;  // a pod is on its way; its change wakes us
  const auto begun = begin(**found);
  if (!begun.ok()) {
    LOG_WARNING("scheduler", "{}", begun.error().to_string());
    d_.gate.end_decision(uid);
    wait_after_refusal((*found)->job, after((*found)->job, action), begun.error());
    return false;  // the next round decides anew
  }
  const api::TrainingJob& job = *begun;
  api::Allocation next = after(job, action);
  const auto pods = d_.caches.pods_of(job.meta.uid);
  std::map<std::string, const kube::Pod*> by_name;
  for (const auto& pod : pods) by_name[pod->meta.name] = pod.get();
  count_left(job, by_name, next);
  const auto written = write_allocation(d_.client, job, next);
  d_.metrics
      .counter("rubato_plan_actions_total", "Decisions of the scheduler.",
               {{"action", name_of(action.kind)}, {"result", written.ok() ? "ok" : "error"}})
      .add();
  if (!written.ok()) {
    // Somebody wrote first, or the server is away: the next round decides anew.
    LOG_WARNING("scheduler", "{}/{}: allocation not written: {}", job.meta.ns, job.meta.name,
                written.error().to_string());
    if (kube::may_have_happened(written.error())) {
      unsettled_.insert_or_assign({job.meta.ns, job.meta.name}, Unsettled{job, next, action.kind});
    } else {
      d_.gate.end_decision(job.meta.uid);
      wait_after_refusal(job, next, written.error());
    }
    return false;
  }
  d_.gate.end_decision(job.meta.uid, next.epoch);
  written_[job.meta.uid] = {
      {job.meta.ns, job.meta.name}, next.epoch, kube::resource_version_of(*written)};
  tell(job, next, action.kind);
  return true;
}

// What no other decision helps against is said of the job: etcd finds the object too large, the CRD
// (of an earlier release) or a policy refuses the write. It is not tried again before a pause is
// over.
void SchedulerLoop::wait_after_refusal(const api::TrainingJob& job, const api::Allocation& next,
                                       const Error& error) {
  if (error.code() != Code::kInvalid && !kube::is_forbidden(error)) return;
  const std::string& uid = job.meta.uid;
  const MonoTime now = d_.executor.now();
  const std::string why =
      fmt::format("the API server does not take a decision on its GPUs ({} of {}): {}",
                  counted(static_cast<std::int64_t>(next.pods.size()), "pod"),
                  counted(next.gpus, "GPU"), error.what());
  const std::int64_t has = job.status.allocation ? job.status.allocation->gpus : 0;
  if (has == 0)
    d_.memory.hold_back(uid, {now + kRefusalPause, std::string(api::reason::kWaitingForGpus), why});
  else if (next.gpus > has)
    d_.memory.limit_growth(uid, has, now);
  if (d_.memory.may_tell(uid, "NotAllocated", now))
    d_.events.emit(
        {std::string(api::kApiVersion), "TrainingJob", job.meta.ns, job.meta.name, uid, ""},
        {kube::EventLevel::kWarning, "NotAllocated", "Scheduling", why});
  d_.enqueue({job.meta.ns, job.meta.name});
}

void SchedulerLoop::tell(const api::TrainingJob& job, const api::Allocation& next,
                         sched::ActionKind kind) {
  if (kind == sched::ActionKind::kGrow) d_.memory.note_grown(job.meta.uid, d_.executor.now());
  LOG_INFO("scheduler", "{}/{}: {} (epoch {}): {}", job.meta.ns, job.meta.name,
           to_text(kind, next.gpus), next.epoch, next.reason);
  d_.events.emit(
      {std::string(api::kApiVersion), "TrainingJob", job.meta.ns, job.meta.name, job.meta.uid, ""},
      {kind == sched::ActionKind::kPreempt ? kube::EventLevel::kWarning : kube::EventLevel::kNormal,
       kind == sched::ActionKind::kPreempt ? "Preempted" : "Allocated", "Scheduling",
       fmt::format("{}: {}", to_text(kind, next.gpus), next.reason)});
  d_.enqueue({job.meta.ns, job.meta.name});
}

void SchedulerLoop::tell_verdicts(const sched::Snapshot& decided_on, const sched::Plan& plan) {
  const sched::ClusterState& state = decided_on.state;
  const std::string& policy = decided_on.policy.policy;
  const auto& starts =
      start_forecast_.look_at(decided_on, plan, d_.executor.now(), d_.executor.clock().wall());
  std::map<sched::JobId, JobVerdict> verdicts;
  std::vector<kube::Key> changed;
  const bool is_blind = !sched::descriptor_of(policy).uses_deadlines;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const sched::Verdict& verdict = plan.verdicts[i];
    const sched::Job& job = state.jobs[i];
    JobVerdict told{verdict.outcome, verdict.reason, explain(verdict, job), ""};
    if (verdict.until_ms)
      told.told.message +=
          ", until " + to_rfc3339(WallTime{std::chrono::milliseconds(*verdict.until_ms)});
    if (const auto start = starts.find(job.id); start != starts.end())
      told.expected_start = start->second;
    if (job.deadline_ms && is_blind) told.ignores_deadline = policy;
    if (d_.memory.verdict(job.id) != told) changed.push_back(kube::parse_key(job.name));
    verdicts.emplace(job.id, std::move(told));
  }
  if (planted(Bug::kUnexplained)) return;
  d_.memory.set_verdicts(std::move(verdicts));
  for (const kube::Key& key : changed) d_.enqueue(key);
}

}  // namespace rubato::control
