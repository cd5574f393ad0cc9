#include "operator/control/job_controller.h"

#include "common/log.h"
#include "operator/control/job_pass.h"

#include <utility>

namespace rubato::control {

JobController::JobController(JobControllerDependencies dependencies)
    : d_(std::move(dependencies)) {}

kube::Outcome JobController::reconcile(const kube::Key& key) {
  const auto object = d_.caches.jobs.store().get(key);
  if (!object) {
    forget_gone(key);
    return kube::done();
  }
  std::string before;  // of a job of this name that was deleted meanwhile
  {
    std::lock_guard lock(mutex_);
    std::string& uid = uids_[key];
    if (uid != object->job.meta.uid) before = std::exchange(uid, object->job.meta.uid);
  }
  if (!before.empty()) forget(before);
  return JobPass(d_, object, leader_).run();
}

void JobController::forget_gone(const kube::Key& key) {
  std::string uid;
  {
    std::lock_guard lock(mutex_);
    const auto found = uids_.find(key);
    if (found == uids_.end()) return;
    uid = std::move(found->second);
    uids_.erase(found);
  }
  forget(uid);
}

// Waits for the job's task, and so for a write that is on its way: not under the mutex.
void JobController::forget(const std::string& uid) {
  d_.coordinator.forget(uid);
  d_.memory.forget_job(uid);
  d_.gate.forget_job(uid);
}

void JobController::on_job_change(const kube::Change<JobObject>& change) {
  if (!change.before) return;
  const std::string& uid = change.before->job.meta.uid;
  if (!change.after || change.after->job.meta.uid != uid) forget(uid);
}

void JobController::on_pod_change(const kube::Change<kube::Pod>& change) {
  d_.gate.saw(change);
  const auto& owner = change.any().meta.owner;
  if (!owner || owner->kind != "TrainingJob") return;
  const auto job = d_.caches.jobs.store().get({change.any().meta.ns, owner->name});
  if (!job || job->job.meta.uid != owner->uid) return;
  d_.gate.note_made(owner->uid, change.any().meta.name);
  if (change.after || !job->job.status.allocation) return;
  const kube::Pod& gone = *change.before;
  for (const auto& pod : job->job.status.allocation->pods) {
    if (pod.name == gone.meta.name) {
      d_.memory.note_lost(job->job.meta.uid, gone.meta.ns + "/" + gone.meta.name);
      return;
    }
  }
}

}  // namespace rubato::control
