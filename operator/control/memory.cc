#include "operator/control/memory.h"

#include "operator/api/conditions.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::control {
namespace {

Duration doubled(Duration first, int times, Duration most) {
  Duration wait = first;
  for (int i = 0; i < times && wait < most; ++i) wait *= 2;
  return std::min(wait, most);
}

}  // namespace

std::string to_text(const HeldBack& held) {
  return fmt::format("{}; tried again at {}", held.why, to_rfc3339(held.until));
}

void Memory::set_verdicts(std::map<sched::JobId, JobVerdict> verdicts) {
  std::lock_guard lock(mutex_);
  verdicts_ = std::move(verdicts);
}

std::optional<JobVerdict> Memory::verdict(const std::string& job_uid) const {
  std::lock_guard lock(mutex_);
  const auto found = verdicts_.find(job_uid);
  if (found == verdicts_.end()) return std::nullopt;
  return found->second;
}

void Memory::note_lost(const std::string& job_uid, const std::string& pod) {
  std::lock_guard lock(mutex_);
  lost_[job_uid].insert(pod);
}

void Memory::forget_lost(const std::string& job_uid,
                         const std::function<bool(const std::string& pod)>& is_there) {
  std::lock_guard lock(mutex_);
  const auto found = lost_.find(job_uid);
  if (found == lost_.end() || found->second.size() <= kLostKept) return;
  std::erase_if(found->second, [&](const std::string& pod) { return !is_there(pod); });
}

std::set<std::string> Memory::lost_pods(const std::string& job_uid) const {
  std::lock_guard lock(mutex_);
  const auto found = lost_.find(job_uid);
  return found == lost_.end() ? std::set<std::string>{} : found->second;
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

void Memory::note_lease(const NodeLease& lease, bool gone, WallTime now) {
  std::lock_guard lock(mutex_);
  if (gone) {
    renewals_.erase(lease.meta.name);
    return;
  }
  const auto [at, is_first] =
      renewals_.try_emplace(lease.meta.name, Renewal{lease.renewed, lease.renewed});
  if (is_first || at->second.written == lease.renewed) return;
  at->second = {lease.renewed, now};
}

NodeLease Memory::by_our_clock(const NodeLease& lease, WallTime now) const {
  NodeLease result = lease;
  std::lock_guard lock(mutex_);
  const auto at = renewals_.find(lease.meta.name);
  if (at == renewals_.end()) return result;
  const bool is_noted = at->second.written == lease.renewed;  // or will be in a moment
  result.renewed = is_noted ? at->second.seen : now;
  return result;
}

void Memory::note_ended_early(const std::string& job_uid, const std::string& pod_uid,
                              WallTime now) {
  std::lock_guard lock(mutex_);
  EarlyEnds& ends = early_[job_uid];
  if (!ends.pods.insert(pod_uid).second) return;
  ends.streak = now - ends.last > kEarlyEndQuiet ? 1 : ends.streak + 1;
  ends.last = now;
  if (ends.streak < 2) return;
  held_back_[job_uid] = {now + doubled(kEarlyEndFirst, ends.streak - 2, kEarlyEndMost),
                         std::string(api::reason::kWaitingForGpus), "its pods ended early"};
}

MonoTime Memory::waits_since(const std::string& job_uid, const std::string& pod, MonoTime now) {
  std::lock_guard lock(mutex_);
  return unstarted_[job_uid].waiting.try_emplace(pod, now).first->second;
}

void Memory::give_up(const std::string& job_uid, const std::string& pod) {
  std::lock_guard lock(mutex_);
  unstarted_[job_uid].given_up.insert(pod);
}

void Memory::forget_unstarted(const std::string& job_uid,
                              const std::function<bool(const std::string& pod)>& waits) {
  std::lock_guard lock(mutex_);
  const auto found = unstarted_.find(job_uid);
  if (found == unstarted_.end()) return;
  std::erase_if(found->second.waiting, [&](const auto& pod) { return !waits(pod.first); });
  std::erase_if(found->second.given_up, [&](const auto& pod) { return !waits(pod); });
}

std::set<std::string> Memory::given_up() const {
  std::lock_guard lock(mutex_);
  std::set<std::string> all;
  for (const auto& [job, unstarted] : unstarted_)
    all.insert(unstarted.given_up.begin(), unstarted.given_up.end());
  return all;
}

void Memory::note_selected(const std::string& job_uid, const std::string& claim_uid,
                           const std::string& node) {
  std::lock_guard lock(mutex_);
  selected_[job_uid][claim_uid] = node;
}

std::optional<std::string> Memory::take_selected(const std::string& job_uid,
                                                 const std::string& claim_uid) {
  std::lock_guard lock(mutex_);
  const auto of_job = selected_.find(job_uid);
  if (of_job == selected_.end()) return std::nullopt;
  const auto found = of_job->second.find(claim_uid);
  if (found == of_job->second.end()) return std::nullopt;
  std::optional<std::string> node = std::move(found->second);
  of_job->second.erase(found);
  return node;
}

void Memory::note_grown(const std::string& job_uid, WallTime now) {
  std::lock_guard lock(mutex_);
  grown_[job_uid] = now;
}

std::set<std::string> Memory::grown_since(WallTime since) const {
  std::lock_guard lock(mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, when] : grown_)
    if (when > since) jobs.insert(job);
  return jobs;
}

void Memory::note_failed_start(const std::string& job_uid, std::int64_t generation, Duration time,
                               WallTime now) {
  std::lock_guard lock(mutex_);
  FailedStarts& failed = failed_starts_[job_uid];
  if (failed.generation != generation) failed = {.generation = generation};
  ++failed.in_a_row;
  failed.spare_only_until = now + doubled(kSpareOnly * time, failed.in_a_row - 1, kSpareOnlyMost);
}

void Memory::note_started(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  failed_starts_.erase(job_uid);
}

std::map<std::string, FailedStarts> Memory::failed_starts() const {
  std::lock_guard lock(mutex_);
  return failed_starts_;
}

void Memory::hold_back(const std::string& job_uid, HeldBack held) {
  std::lock_guard lock(mutex_);
  held_back_[job_uid] = std::move(held);
}

std::map<std::string, HeldBack> Memory::held_back() const {
  std::lock_guard lock(mutex_);
  return held_back_;
}

std::optional<HeldBack> Memory::held_back(const std::string& job_uid, WallTime now) const {
  std::lock_guard lock(mutex_);
  const auto found = held_back_.find(job_uid);
  if (found == held_back_.end() || found->second.until <= now) return std::nullopt;
  return found->second;
}

namespace {
bool is_time(MonoTime& last, MonoTime now, Duration period) {
  if (last != MonoTime{} && now - last < period) return false;
  last = now;
  return true;
}
}  // namespace

bool Memory::may_write_progress(const std::string& job_uid, MonoTime now, Duration period) {
  std::lock_guard lock(mutex_);
  return is_time(progress_written_[job_uid], now, period);
}

bool Memory::may_renew(const std::string& job_uid, MonoTime now) {
  std::lock_guard lock(mutex_);
  return is_time(renewal_tried_[job_uid], now, kRenewalPause);
}

coordinator::GpuSeconds Memory::gpu_seconds(const std::string& job_uid,
                                            const coordinator::GpuSeconds& in_status,
                                            MonoTime since,
                                            const coordinator::GpuSeconds& counted) {
  std::lock_guard lock(mutex_);
  const auto [found, is_new] = accounts_.try_emplace(job_uid);
  Account& account = found->second;
  if (is_new) {
    account.before = in_status;
  } else if (account.since != since) {
    account.before += account.counted;
  }
  account.since = since;
  account.counted = counted;
  coordinator::GpuSeconds all = account.before;
  all += counted;
  return all;
}

bool Memory::say_once(const std::string& job_uid, const std::string& what) {
  std::lock_guard lock(mutex_);
  return said_[job_uid].insert(what).second;
}

void Memory::note_told_before(const std::string& job_uid, const std::string& subject,
                              const std::string& said) {
  std::lock_guard lock(mutex_);
  told_[job_uid].try_emplace(subject, said);
}

bool Memory::is_news(const std::string& job_uid, const std::string& subject,
                     const std::string& said) {
  std::lock_guard lock(mutex_);
  std::string& last = told_[job_uid][subject];
  return std::exchange(last, said) != said;
}

void Memory::forget_job(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  verdicts_.erase(job_uid);
  lost_.erase(job_uid);
  held_back_.erase(job_uid);
  failed_starts_.erase(job_uid);
  grown_.erase(job_uid);
  progress_written_.erase(job_uid);
  renewal_tried_.erase(job_uid);
  accounts_.erase(job_uid);
  said_.erase(job_uid);
  told_.erase(job_uid);
  early_.erase(job_uid);
  unstarted_.erase(job_uid);
  selected_.erase(job_uid);
}

}  // namespace rubato::control
