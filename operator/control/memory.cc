#include "operator/control/memory.h"

#include <algorithm>

namespace rubato::control {

void Memory::set_verdicts(std::map<sched::JobId, sched::Verdict> verdicts) {
  std::lock_guard lock(mutex_);
  verdicts_ = std::move(verdicts);
}

std::optional<sched::Verdict> Memory::verdict(const std::string& job_uid) const {
  std::lock_guard lock(mutex_);
  const auto found = verdicts_.find(job_uid);
  if (found == verdicts_.end()) return std::nullopt;
  return found->second;
}

void Memory::note_lost(const std::string& job_uid, const std::string& pod) {
  std::lock_guard lock(mutex_);
  lost_[job_uid].insert(pod);
}

std::set<std::string> Memory::lost_pods() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> all;
  for (const auto& [job, pods] : lost_) all.insert(pods.begin(), pods.end());
  return all;
}

void Memory::suspect_node(const std::string& node, WallTime since) {
  std::lock_guard lock(mutex_);
  suspects_[node] = since;
}

std::map<std::string, WallTime> Memory::suspects() const {
  std::lock_guard lock(mutex_);
  return suspects_;
}

void Memory::note_ended_early(const std::string& job_uid, const std::string& pod_uid,
                              WallTime now) {
  std::lock_guard lock(mutex_);
  EarlyEnds& ends = early_[job_uid];
  if (!ends.pods.insert(pod_uid).second) return;
  ends.streak = now - ends.last > kEarlyEndQuiet ? 1 : ends.streak + 1;
  ends.last = now;
  if (ends.streak < 2) return;
  Duration wait = kEarlyEndFirst;
  for (int i = 2; i < ends.streak && wait < kEarlyEndMost; ++i) wait *= 2;
  held_back_[job_uid] = now + std::min<Duration>(wait, kEarlyEndMost);
}

void Memory::hold_back(const std::string& job_uid, WallTime until) {
  std::lock_guard lock(mutex_);
  held_back_[job_uid] = until;
}

std::map<std::string, WallTime> Memory::held_back() const {
  std::lock_guard lock(mutex_);
  return held_back_;
}

bool Memory::may_write_progress(const std::string& job_uid, MonoTime now, Duration period) {
  std::lock_guard lock(mutex_);
  MonoTime& last = progress_written_[job_uid];
  if (last != MonoTime{} && now - last < period) return false;
  last = now;
  return true;
}

void Memory::forget_job(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  verdicts_.erase(job_uid);
  lost_.erase(job_uid);
  held_back_.erase(job_uid);
  progress_written_.erase(job_uid);
  early_.erase(job_uid);
}

}  // namespace rubato::control
