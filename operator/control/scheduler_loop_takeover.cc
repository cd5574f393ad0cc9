// SchedulerLoop, before its first round: what earlier leaders did, and what they may still do.
#include "common/log.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "operator/control/plan_executor.h"
#include "operator/control/scheduler_loop.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>
#include <vector>

namespace rubato::control {

namespace {
// A binding that the cache has not shown after so long is asked about. No request is under way for
// as long (kube::FencedClient).
constexpr auto kUnseenLimit = 10s;
// Since a membership was taken over last.
constexpr auto kTakeoverPatience = 5s;
constexpr auto kRetryPause = 1s;
constexpr std::int64_t kObjectsPerPage = 500;
constexpr int kTriesMost = 4;  // of a write that met another
constexpr std::size_t kWritesAtOnce = 8;
}  // namespace

// What is bound counts until the cache shows it. Returns the pods of namespaces that were left
// alone.
std::map<kube::Key, kube::Pod> SchedulerLoop::note_bound(const std::vector<json::Value>& pods) {
  std::map<kube::Key, kube::Pod> there;
  for (const auto& item : pods) {
    auto pod = kube::Pod::decode(item);
    if (!pod.ok()) continue;
    if (!pod->node_name.empty() && !pod->is_finished() && !shows_bound(*pod))
      d_.gate.binds(*pod, pod->node_name, d_.executor.now());
    if (left_alone_.contains(pod->meta.ns)) there.emplace(pod->meta.key(), std::move(*pod));
  }
  return there;
}

// What earlier leaders did may be newer than our caches. From the API server itself: the newest
// allocations, for which a round waits, and what is bound, which counts until the cache shows it.
// Of a namespace whose jobs may not be listed nothing is known and nothing is waited for; all of
// this is done anew when they may, and what was promised to them meanwhile counts as lost.
bool SchedulerLoop::take_stock() {
  const std::set<std::string> denied = d_.caches.jobs.denied();
  if (took_stock_ &&
      std::includes(denied.begin(), denied.end(), left_alone_.begin(), left_alone_.end())) {
    left_alone_ = denied;
    std::erase_if(written_, [&](const auto& each) { return denied.contains(each.second.job.ns); });
    return true;
  }
  took_stock_ = false;
  const auto jobs = list_jobs(denied);
  const auto pods = list_all(kube::types::kPod, "", std::string(api::kLabelJob));
  if (!jobs.ok() || !pods.ok()) {  // again in the next round
    LOG_WARNING("scheduler", "no round before what stands is known: {}",
                (jobs.ok() ? pods.error() : jobs.error()).to_string());
    return false;
  }
  const std::map<kube::Key, kube::Pod> there = note_bound(*pods);
  written_.clear();
  behind_.clear();
  std::vector<api::TrainingJob> of_earlier;
  for (const auto& item : *jobs) {
    const auto object = JobObject::decode(item);
    if (!object.ok() || !d_.installation.may_see(object->meta, object->job.status.installation))
      continue;
    const api::TrainingJob& job = object->job;
    const auto& allocation = job.status.allocation;
    const std::string& uid = object->meta.uid;
    if (allocation && left_alone_.contains(job.meta.ns)) note_broken_promises(job, there);
    if (allocation)
      written_[uid] = {object->meta.key(), allocation->epoch, job.meta.resource_version};
    if (may_get_late_write(job)) {
      // The coordinator takes the membership over of a job that holds GPUs.
      if (job.status.membership && allocation && !allocation->pods.empty())
        behind_.insert_or_assign(uid, object->meta.key());
      else
        of_earlier.push_back(job);
    }
  }
  if (!shut_out_earlier(of_earlier)) return false;
  std::map<std::string, std::int64_t> stands;
  for (const auto& [uid, latest] : written_) stands[uid] = latest.epoch;
  d_.gate.open(stands);
  for (const auto& [uid, job] : written_) d_.enqueue(job.job);  // their pods may be placed now
  takeovers_until_ = d_.executor.now() + kTakeoverPatience;
  left_alone_ = denied;
  took_stock_ = true;
  return true;
}

// While nothing was known of the job the GPUs of its pods that are not bound were free for others.
void SchedulerLoop::note_broken_promises(const api::TrainingJob& job,
                                         const std::map<kube::Key, kube::Pod>& there) {
  for (const auto& allocated : job.status.allocation->pods) {
    const auto pod = there.find({job.meta.ns, allocated.name});
    const bool is_its_own =
        pod != there.end() && pod->second.meta.owner && pod->second.meta.owner->uid == job.meta.uid;
    if (!is_its_own) d_.memory.note_lost(job.meta.uid, job.meta.ns + "/" + allocated.name);
    if (is_its_own && pod->second.node_name.empty())
      d_.memory.note_lost(job.meta.uid, pod->second.meta.uid);
  }
}

// Of an earlier leader, which the API server still works on: it tests the leader in the membership,
// which was there before, and the epoch of the allocation before it, or, where there is none, that
// nothing at all has changed.
bool SchedulerLoop::may_get_late_write(const api::TrainingJob& job) const {
  const auto& allocation = job.status.allocation;
  const auto& membership = job.status.membership;
  return (allocation || membership) && !(membership && membership->leader >= leader_) &&
         !(allocation && allocation->leader_transition == leader_) &&
         !api::is_finished(job.status.conditions);
}

// When the cache is as new as what was listed. Until every job that holds GPUs is ours, one of them
// may grow by what an earlier leader decided, onto a GPU that a round would give to another.
bool SchedulerLoop::has_taken_over() {
  const auto job_of = [&](const auto& entry) {
    const auto job = d_.caches.jobs.store().get(entry.second);
    return job && job->job.meta.uid == entry.first ? job : nullptr;
  };
  const auto ours = std::erase_if(behind_, [&](const auto& entry) {
    const auto job = job_of(entry);
    return !job || !may_get_late_write(job->job);
  });
  if (ours > 0) takeovers_until_ = d_.executor.now() + kTakeoverPatience;
  if (!behind_.empty() && d_.executor.now() < takeovers_until_) {
    wake_at_ = takeovers_until_;
    return false;
  }
  for (auto at = behind_.begin(); at != behind_.end(); at = behind_.erase(at)) {
    const auto job = job_of(*at);
    if (!job) continue;
    LOG_WARNING("scheduler", "{}: its membership is not taken over yet", to_string(at->second));
    const bool may_write = d_.gate.begin_decision(at->first);
    const bool is_done = may_write && shut_out_earlier(job->job);
    if (may_write) d_.gate.end_decision(at->first, written_.at(at->first).epoch);
    if (is_done) continue;
    takeovers_until_ = wake_at_ = d_.executor.now() + kRetryPause;
    return false;  // the API server is away, the cache is behind, or a pod is being placed
  }
  return has_seen_own_writes();
}

// A write each, several at once.
bool SchedulerLoop::shut_out_earlier(const std::vector<api::TrainingJob>& jobs) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> all_done = true;
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < std::min(jobs.size(), kWritesAtOnce); ++i)
    tasks.push_back(d_.executor.spawn("takeover", [&](const std::stop_token&) {
      for (std::size_t at = next++; at < jobs.size() && all_done; at = next++)
        if (!shut_out_earlier(jobs[at])) all_done = false;
    }));
  for (Task& task : tasks) task.join();
  return all_done;
}

// False: to be tried again.
bool SchedulerLoop::shut_out_earlier(const api::TrainingJob& job) {
  const kube::Key key{job.meta.ns, job.meta.name};
  const auto note = [&](Written written) {
    std::lock_guard lock(mutex_);
    written_[job.meta.uid] = std::move(written);
  };
  auto anew = shut_out(job);
  for (int tries = 1; !anew.ok() && anew.error().code() == Code::kConflict && tries < kTriesMost;
       ++tries) {
    // Our own job controller writes too, and it may be that what was late has come.
    const auto live = d_.client.get(api::kTrainingJob, key);
    const auto now = live.ok() ? JobObject::decode(*live) : live.error();
    if (!now.ok() && now.error().code() != Code::kNotFound) return false;
    if (!now.ok() || now->meta.uid != job.meta.uid) return true;  // gone
    if (!may_get_late_write(now->job)) {
      if (const auto& stands = now->job.status.allocation)
        note({key, stands->epoch, now->meta.resource_version});
      return true;
    }
    anew = shut_out(now->job);
  }
  if (anew.ok()) {
    note(std::move(anew).value());
    return true;
  }
  LOG_WARNING("scheduler", "{}: what an earlier leader may still write is not shut out: {}",
              to_string(key), anew.error().to_string());
  // What the API server will never take need not hold up all others.
  return retry_class(anew.error().code()) == Retry::kNever;
}

// The next epoch, with what stands: a write that is still on its way tests the one before.
Result<SchedulerLoop::Written> SchedulerLoop::shut_out(const api::TrainingJob& job) {
  const api::Allocation next = renewed(job, leader_, d_.executor.clock().wall());
  TRY(const json::Value written, write_allocation(d_.client, job, next));
  return Written{{job.meta.ns, job.meta.name}, next.epoch, kube::resource_version_of(written)};
}

Result<std::vector<json::Value>> SchedulerLoop::list_jobs(const std::set<std::string>& denied) {
  if (d_.installation.namespaces.empty()) return list_all(api::kTrainingJob, "", "");
  std::vector<json::Value> all;
  for (const std::string& ns : d_.installation.namespaces) {
    if (denied.contains(ns)) continue;
    TRY(std::vector<json::Value> some, list_all(api::kTrainingJob, ns, ""));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

Result<std::vector<json::Value>> SchedulerLoop::list_all(const kube::ResourceType& type,
                                                         const std::string& ns,
                                                         const std::string& label_selector) {
  std::vector<json::Value> all;
  kube::ListOptions options;
  options.label_selector = label_selector;
  options.limit = kObjectsPerPage;
  do {
    TRY(kube::ObjectList page, d_.client.list(type, ns, options));
    for (auto& item : page.items) all.push_back(std::move(item));
    options.continue_token = page.continue_token;
  } while (!options.continue_token.empty());
  return all;
}

bool SchedulerLoop::shows_bound(const kube::Pod& pod) const {
  const auto seen = d_.caches.pods.store().get(pod.meta.key());
  return seen && seen->meta.uid == pod.meta.uid && !seen->node_name.empty();
}

// A pod that came and went unseen, or was never bound, is not waited for.
void SchedulerLoop::look_after_bindings() {
  for (const auto& pod : d_.gate.unseen_since_before(d_.executor.now() - kUnseenLimit)) {
    bool over = shows_bound(*pod);
    if (!over) {
      const auto live = live_pod(d_.client, pod->meta.key());
      if (!live.ok()) return;
      const auto now = live->has_value() ? kube::Pod::decode(**live)
                                         : Result<kube::Pod>(Error(Code::kNotFound, "gone"));
      over = !now.ok() || now->meta.uid != pod->meta.uid || now->node_name.empty();
    }
    if (over) {
      d_.gate.not_bound(pod->meta.uid);
    } else {
      d_.gate.binds(*pod, pod->node_name, d_.executor.now());  // asked again after as long
    }
  }
}

}  // namespace rubato::control
