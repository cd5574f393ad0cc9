#include "operator/coordinator/coordinator.h"

#include "common/log.h"
#include "common/stall_watch.h"
#include "operator/coordinator/job_task.h"
#include "operator/coordinator/server.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

namespace rubato::coordinator {
namespace {

const std::vector<double> kCheckpointBuckets = {0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000};
constexpr double kCheckpointLongest = 1e6;  // seconds; a worker says how long, and might lie

// Causes come from workers: those that we know, for each other one would be a series more.
std::string bounded_cause(const Change& change) {
  static constexpr std::array<const char*, 21> kKnown = {"Crash",
                                                         "Killed",
                                                         "OutOfMemory",
                                                         "Error",
                                                         "AgentLost",
                                                         "Silent",
                                                         "Stuck",
                                                         "Diverged",
                                                         "PodDeleted",
                                                         "LinkFailed",
                                                         "StepFailed",
                                                         "DeviceLost",
                                                         "Suspending",
                                                         "Resumed",
                                                         "DataDamaged",
                                                         "DataUnreadable",
                                                         "DataNotFound",
                                                         "DataInvalid",
                                                         "NonFinite",
                                                         "FingerprintMismatch",
                                                         "CheckpointUnusable"};
  if (change.cause.empty()) return change.kind == "recover" ? "Other" : "Planned";
  const auto known = std::find(kKnown.begin(), kKnown.end(), change.cause);
  return known == kKnown.end() ? "Other" : *known;
}

void note_phases(Metrics& metrics, const Change& change) {
  const auto observe = [&](const char* phase, double seconds) {
    metrics
        .histogram("rubato_coordinator_change_phase_seconds",
                   "Phases of a change of membership: detect, answer, write, form, first_step.",
                   {{"kind", change.kind}, {"phase", phase}},
                   {0.01, 0.03, 0.1, 0.3, 0.5, 1, 2, 5, 10, 30, 100})
        .observe(seconds);
  };
  if (!change.cause.empty()) {
    observe("detect", change.detect_seconds);
    observe("answer", change.answer_seconds);
    observe("write", change.write_seconds);
  }
  observe("form", change.form_seconds);
  observe("first_step", change.first_step_seconds);
}

}  // namespace

struct Coordinator::Impl {
  explicit Impl(Dependencies given)
      : d(std::move(given)),
        stalls(d.executor),
        server(d, [this](const std::string& uid) { return find(uid); }) {}

  Server::Standing find(const std::string& uid) const {
    const std::lock_guard lock(mutex);
    Server::Standing standing;
    standing.leading = epoch.has_value();
    standing.epoch = epoch.value_or(0);
    standing.agents = wished_pods;
    if (const auto found = jobs.find(uid); found != jobs.end()) standing.job = found->second;
    return standing;
  }

  // Under the lock.
  void note_pods(const std::string& uid, std::size_t pods) {
    std::size_t& noted = pods_of[uid];
    wished_pods += pods - noted;
    noted = pods;
  }

  std::shared_ptr<JobTask> make_job(const Wish& wish, std::uint64_t seen_step,
                                    std::uint64_t leader) {
    JobTask::Hooks hooks;
    hooks.changed = [this](const kube::Key& key) {
      if (changed) changed(key);
    };
    hooks.ended_change = [this](const Change& change) {
      const Labels labels{{"kind", change.kind}};
      d.metrics
          .counter("rubato_coordinator_changes_total",
                   "Changes of membership that ended, by kind and cause.",
                   {{"kind", change.kind}, {"reason", bounded_cause(change)}})
          .add();
      note_phases(d.metrics, change);
      d.metrics
          .histogram("rubato_coordinator_stall_seconds",
                     "Training time lost to a change of membership.", labels,
                     {0.01, 0.03, 0.1, 0.3, 0.5, 1, 2, 5, 10, 30, 100})
          .observe(change.stall_seconds);
    };
    hooks.newer_leader = [this](std::uint64_t other) {
      if (d.on_epoch) d.on_epoch(other);
    };
    hooks.conflict = [this] {
      d.metrics
          .counter("rubato_coordinator_conflicts_total",
                   "Writes of membership that met another writer's.")
          .add();
    };
    hooks.checkpoint_written = [this](double seconds) {
      d.metrics
          .counter("rubato_coordinator_checkpoints_written_total",
                   "Checkpoints that were written in full.")
          .add();
      d.metrics
          .histogram("rubato_coordinator_checkpoint_seconds",
                     "How long the writing of a checkpoint took, beside the training.", {},
                     kCheckpointBuckets)
          .observe(std::isfinite(seconds) ? std::clamp(seconds, 0.0, kCheckpointLongest) : 0.0);
    };
    hooks.checkpoints_skipped = [this](std::uint64_t count) {
      d.metrics
          .counter("rubato_coordinator_checkpoints_skipped_total",
                   "Checkpoints that were due while the one before was still being written.")
          .add(static_cast<double>(count));
    };
    return std::make_shared<JobTask>(
        d.executor, d.client, d.timing, wish, seen_step, leader,
        JobTask::World{.awake_since = [this] { return stalls.awake_since(); },
                       .heard_until = [this] { return server.heard_until(); },
                       .crowded_at = [this] { return server.crowded_at(); }},
        std::move(hooks));
  }

  Dependencies d;
  StallWatch stalls;
  std::function<void(const kube::Key&)> changed;
  mutable std::mutex mutex;
  std::optional<std::uint64_t> epoch;
  std::map<std::string, std::shared_ptr<JobTask>> jobs;  // by uid
  std::map<std::string, std::size_t> pods_of;            // of their wishes
  std::size_t wished_pods = 0;                           // of all of them
  Server server;  // last: its sessions end before the jobs do
};

Coordinator::Coordinator(Dependencies dependencies)
    : impl_(std::make_unique<Impl>(std::move(dependencies))) {}

Coordinator::~Coordinator() { stop_leading(); }

Status Coordinator::start() { return impl_->server.start(); }

net::Endpoint Coordinator::local() const { return impl_->server.local(); }

void Coordinator::renew(Credentials credentials) { impl_->server.renew(std::move(credentials)); }

void Coordinator::lead(std::uint64_t epoch) {
  stop_leading();
  const std::lock_guard lock(impl_->mutex);
  impl_->epoch = epoch;
}

void Coordinator::stop_leading() {
  std::map<std::string, std::shared_ptr<JobTask>> ended;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->epoch.reset();
    ended.swap(impl_->jobs);
    impl_->pods_of.clear();
    impl_->wished_pods = 0;
  }
  // All at once: each may be within a request.
  for (auto& [uid, job] : ended) job->ask_to_stop();
  for (auto& [uid, job] : ended) job->join();  // a session may hold it a moment longer
}

void Coordinator::ensure(const Wish& wish, std::uint64_t seen_step) {
  std::shared_ptr<JobTask> job;
  Status begun = ok();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->epoch) return;
    const auto found = impl_->jobs.find(wish.uid);
    if (found != impl_->jobs.end()) {
      job = found->second;
    } else {
      job = impl_->make_job(wish, seen_step, *impl_->epoch);
      begun = job->start();
      if (begun.ok()) impl_->jobs[wish.uid] = job;
    }
    if (begun.ok()) impl_->note_pods(wish.uid, wish.pods.size());
  }
  if (begun.ok())
    job->ensure(wish);
  else
    LOG_WARNING(kLog, "{}: it is not led yet: {}", to_string(wish.job), begun.error().what());
}

void Coordinator::forget(const std::string& job_uid) {
  std::shared_ptr<JobTask> job;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto found = impl_->jobs.find(job_uid);
    if (found == impl_->jobs.end()) return;
    job = std::move(found->second);
    impl_->jobs.erase(found);
    impl_->note_pods(job_uid, 0);
    impl_->pods_of.erase(job_uid);
  }
  job->ask_to_stop();
  job->join();
}

std::optional<View> Coordinator::view(const std::string& job_uid) const {
  const std::shared_ptr<JobTask> job = impl_->find(job_uid).job;
  if (!job) return std::nullopt;
  return job->view();
}

std::size_t Coordinator::jobs() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->jobs.size();
}

MonoTime Coordinator::awake_since() const { return impl_->stalls.awake_since(); }

void Coordinator::on_change(std::function<void(const kube::Key& job)> handler) {
  impl_->changed = std::move(handler);
}

}  // namespace rubato::coordinator
