#include "operator/control/scheduler_loop.h"

#include "common/log.h"
#include "operator/api/resources.h"
#include "operator/control/plan_executor.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

namespace {
const std::vector<double> kRoundBuckets{0.0001, 0.001, 0.01, 0.1, 1, 10};
}

SchedulerLoop::SchedulerLoop(Dependencies dependencies)
    : d_(std::move(dependencies)), woken_(d_.executor.make_condition()) {}

void SchedulerLoop::start(std::int64_t leader) {
  leader_ = leader;
  task_ = d_.executor.spawn("scheduler", [this](std::stop_token stop) { run(stop); });
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

void SchedulerLoop::run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      woken_->wait_until(lock, d_.executor.now() + d_.config.round_interval,
                         [&] { return wake_ || stop.stop_requested(); });
      wake_ = false;
    }
    if (stop.stop_requested()) return;
    if (has_seen_own_writes()) round();
    d_.executor.sleep_for(d_.config.round_spacing, stop);
  }
}

bool SchedulerLoop::has_seen_own_writes() const {
  return std::all_of(written_.begin(), written_.end(), [&](const auto& entry) {
    const auto job = d_.caches.jobs.store().get(entry.first);
    return !job ||
           (job->job.status.allocation && job->job.status.allocation->epoch >= entry.second);
  });
}

void SchedulerLoop::round() {
  const MonoTime began = d_.executor.now();
  const World world = d_.caches.snapshot(d_.memory, d_.coordinator, d_.executor.clock().wall());
  sched::Plan plan =
      sched::make_plan(capture(world, d_.config), {.min_relative_gain = d_.config.min_gain});
  d_.metrics
      .histogram("rubato_schedule_cycle_seconds", "Time of a scheduling decision.", {},
                 kRoundBuckets)
      .observe(std::chrono::duration<double>(d_.executor.now() - began).count());
  written_.clear();
  for (const sched::Action& action : plan.actions) apply(action, world);
  tell_verdicts(world, plan);
}

void SchedulerLoop::apply(const sched::Action& action, const World& world) {
  const auto found = std::find_if(world.jobs.begin(), world.jobs.end(),
                                  [&](const auto& job) { return job->job.meta.uid == action.job; });
  if (found == world.jobs.end()) return;
  const api::TrainingJob& job = (*found)->job;
  const api::Allocation next = allocation_after(job, action, leader_, d_.executor.clock().wall());
  const auto written = write_allocation(d_.client, job, next);
  d_.metrics
      .counter("rubato_plan_actions_total", "Decisions of the scheduler.",
               {{"action", name_of(action.kind)}, {"result", written.ok() ? "ok" : "error"}})
      .add();
  if (!written.ok()) {
    // Somebody wrote first, or the server is away: the next round decides anew.
    LOG_WARNING("scheduler", "{}/{}: allocation not written: {}", job.meta.ns, job.meta.name,
                written.error().to_string());
    return;
  }
  written_[{job.meta.ns, job.meta.name}] = next.epoch;
  LOG_INFO("scheduler", "{}/{}: {} to {} GPUs (epoch {}): {}", job.meta.ns, job.meta.name,
           name_of(action.kind), next.gpus, next.epoch, action.reason);
  d_.events.emit(
      {std::string(api::kApiVersion), "TrainingJob", job.meta.ns, job.meta.name, job.meta.uid, ""},
      {action.kind == sched::ActionKind::kPreempt ? kube::EventLevel::kWarning
                                                  : kube::EventLevel::kNormal,
       action.kind == sched::ActionKind::kPreempt ? "Preempted" : "Allocated", "Scheduling",
       fmt::format("{} to {} GPUs: {}", name_of(action.kind), next.gpus, action.reason)});
  d_.enqueue({job.meta.ns, job.meta.name});
}

void SchedulerLoop::tell_verdicts(const World& world, sched::Plan& plan) {
  std::map<sched::JobId, std::string> told;
  std::vector<kube::Key> changed;
  for (const auto& job : world.jobs) {
    const auto verdict = plan.verdicts.find(job->job.meta.uid);
    if (verdict == plan.verdicts.end()) continue;
    std::string& text = told[verdict->first];
    text = verdict->second.reason + verdict->second.message;
    const auto before = told_.find(verdict->first);
    if (before == told_.end() || before->second != text) changed.push_back(job->meta.key());
  }
  told_ = std::move(told);
  d_.memory.set_verdicts(std::move(plan.verdicts));
  for (const kube::Key& key : changed) d_.enqueue(key);
}

}  // namespace rubato::control
