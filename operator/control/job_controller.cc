#include "operator/control/job_controller.h"

#include "common/log.h"
#include "operator/control/job_pass.h"

#include <algorithm>

namespace rubato::control {

JobController::JobController(JobControllerDependencies dependencies)
    : d_(std::move(dependencies)) {}

kube::Outcome JobController::reconcile(const kube::Key& key) {
  const auto object = d_.caches.jobs.store().get(key);
  if (!object) {
    forget(key);
    return kube::done();
  }
  {
    std::lock_guard lock(mutex_);
    std::string& uid = uids_[key];
    if (!uid.empty() && uid != object->job.meta.uid) {  // deleted and made again meanwhile
      d_.coordinator.forget(uid);
      d_.memory.forget_job(uid);
    }
    uid = object->job.meta.uid;
  }
  return JobPass(d_, object, leader_).run();
}

void JobController::forget(const kube::Key& key) {
  std::lock_guard lock(mutex_);
  const auto found = uids_.find(key);
  if (found == uids_.end()) return;
  d_.coordinator.forget(found->second);
  d_.memory.forget_job(found->second);
  uids_.erase(found);
}

void JobController::on_pod_change(const kube::Change<kube::Pod>& change) {
  if (change.after || !change.before) return;
  const kube::Pod& gone = *change.before;
  if (!gone.meta.owner || gone.meta.owner->kind != "TrainingJob") return;
  const auto job = d_.caches.jobs.store().get({gone.meta.ns, gone.meta.owner->name});
  if (!job || job->job.meta.uid != gone.meta.owner->uid || !job->job.status.allocation) return;
  for (const auto& pod : job->job.status.allocation->pods) {
    if (pod.name == gone.meta.name) {
      d_.memory.note_lost(job->job.meta.uid, gone.meta.ns + "/" + gone.meta.name);
      return;
    }
  }
}

}  // namespace rubato::control
