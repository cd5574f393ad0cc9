#include "operator/control/memory.h"

#include "common/utf8.h"
#include "operator/api/conditions.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::control {
namespace {

constexpr std::size_t kEarlyEndTold = 1024;  // bytes of what became of a pod

Duration doubled(Duration first, int times, Duration most) {
  Duration wait = first;
  for (int i = 0; i < times && wait < most; ++i) wait *= 2;
  return std::min(wait, most);
}

// The next pause, which is twice as long as the one before, unless `most` was quiet since.
void lengthen(int& in_a_row, MonoTime& until, Duration first, Duration most, MonoTime now) {
  if (now - until > most) in_a_row = 0;
  until = now + doubled(first, in_a_row++, most);
}

}  // namespace

Duration progress_period(std::size_t jobs, Duration least) {
  const auto count = static_cast<Duration::rep>(jobs);
  return std::max(
      {least, std::min<Duration>(count * Duration(1s) / 20, 5s), count * Duration(1s) / 200});
}

std::string to_text(const HeldBack& held, MonoTime now, WallTime wall) {
  return fmt::format("{}; tried again at {}", held.why, to_rfc3339(wall_of(held.until, now, wall)));
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

void Memory::suspect_node(const std::string& node, MonoTime since,
                          const std::function<bool()>& is_there) {
  {
    std::lock_guard lock(mutex_);
    suspects_[node] = since;
  }
  if (!is_there()) forget_node(node);  // who forgets nodes that go may have been here before us
}

std::map<std::string, MonoTime> Memory::suspects() const {
  std::lock_guard lock(mutex_);
  return suspects_;
}

void Memory::forget_node(const std::string& node) {
  std::lock_guard lock(mutex_);
  suspects_.erase(node);
}

namespace {
MonoTime as_written(const NodeLease& lease, MonoTime now, WallTime wall) {
  return now - std::max(wall - std::max(lease.renewed, WallTime{}), Duration{0});
}
}  // namespace

void Memory::note_lease(const NodeLease& lease, bool gone, MonoTime now, WallTime wall) {
  std::lock_guard lock(mutex_);
  if (gone) {
    renewals_.erase(lease.meta.name);
    return;
  }
  const auto [at, is_first] =
      renewals_.try_emplace(lease.meta.name, Renewed{lease.renewed, as_written(lease, now, wall)});
  if (is_first || at->second.written == lease.renewed) return;
  at->second = {lease.renewed, now};
  const auto suspect = suspects_.find(lease.meta.name);
  if (suspect != suspects_.end() && suspect->second < now) suspects_.erase(suspect);
}

Renewal Memory::renewal(const NodeLease& lease, MonoTime now, WallTime wall) const {
  std::lock_guard lock(mutex_);
  const auto at = renewals_.find(lease.meta.name);
  if (at == renewals_.end()) return {as_written(lease, now, wall), lease.duration};
  const bool is_noted = at->second.written == lease.renewed;  // or will be in a moment
  return {is_noted ? at->second.seen : now, lease.duration};
}

void Memory::note_ended_early(const std::string& job_uid, const std::string& pod_uid,
                              const std::string& why, MonoTime now) {
  std::lock_guard lock(mutex_);
  EarlyEnds& ends = early_[job_uid];
  if (!ends.pods.insert(pod_uid).second) return;
  ends.streak = now - ends.last > kEarlyEndQuiet ? 1 : ends.streak + 1;
  ends.last = now;
  if (ends.streak < 2) return;
  held_back_[job_uid] = {
      now + doubled(kEarlyEndFirst, ends.streak - 2, kEarlyEndMost),
      std::string(api::reason::kWaitingForGpus),
      fmt::format("its pods ended early, the last one: {}", utf8_prefix(why, kEarlyEndTold))};
}

void Memory::note_admitted(const std::string& job_uid, kube::Pod pod) {
  std::lock_guard lock(mutex_);
  admitted_[job_uid] = std::make_shared<const kube::Pod>(std::move(pod));
}

std::shared_ptr<const kube::Pod> Memory::admitted(const std::string& job_uid) const {
  std::lock_guard lock(mutex_);
  const auto found = admitted_.find(job_uid);
  return found == admitted_.end() ? nullptr : found->second;
}

namespace {
MonoTime first_of(std::optional<MonoTime>& seen, MonoTime now) {
  if (!seen) seen = now;
  return *seen;
}
}  // namespace

MonoTime Memory::deleted_since(const std::string& job_uid, MonoTime now) {
  std::lock_guard lock(mutex_);
  return first_of(ends_[job_uid].deleted, now);
}

MonoTime Memory::finished_since(const std::string& job_uid, MonoTime now) {
  std::lock_guard lock(mutex_);
  return first_of(ends_[job_uid].finished, now);
}

void Memory::note_made(const std::string& job_uid, const std::string& pod, MonoTime now) {
  std::lock_guard lock(mutex_);
  made_[job_uid].pods.try_emplace(pod, now);
}

// Who has come is not new in a later generation. The answer for this one stays, for the status may
// have to be written again.
std::optional<MonoTime> Memory::newest_made(const std::string& job_uid, std::uint64_t generation,
                                            const std::set<std::string>& members) {
  std::lock_guard lock(mutex_);
  Made& made = made_[job_uid];
  if (made.generation == generation) return made.newest;
  made.generation = generation;
  made.newest.reset();
  for (const std::string& pod : members) {
    const auto found = made.pods.find(pod);
    if (found == made.pods.end()) continue;
    made.newest = std::max(made.newest, std::optional(found->second));
    made.pods.erase(found);
  }
  return made.newest;
}

void Memory::forget_made(const std::string& job_uid,
                         const std::function<bool(const std::string& pod)>& may_come) {
  std::lock_guard lock(mutex_);
  const auto found = made_.find(job_uid);
  if (found == made_.end()) return;
  std::erase_if(found->second.pods, [&](const auto& pod) { return !may_come(pod.first); });
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

std::set<std::string> Memory::given_up(const std::string& job_uid) const {
  std::lock_guard lock(mutex_);
  const auto found = unstarted_.find(job_uid);
  return found == unstarted_.end() ? std::set<std::string>{} : found->second.given_up;
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

void Memory::note_grown(const std::string& job_uid, MonoTime now) {
  std::lock_guard lock(mutex_);
  grown_[job_uid] = now;
}

std::set<std::string> Memory::grown_since(MonoTime since) const {
  std::lock_guard lock(mutex_);
  std::set<std::string> jobs;
  for (const auto& [job, when] : grown_)
    if (when > since) jobs.insert(job);
  return jobs;
}

void Memory::note_failed_start(const std::string& job_uid, const FailedStart& start, Duration time,
                               MonoTime now) {
  std::lock_guard lock(mutex_);
  FailedStarts& failed = failed_starts_[job_uid];
  if (failed.in_a_row > 0 && failed.epoch == start.epoch) return;
  if (failed.generation != start.generation) failed = {.generation = start.generation};
  failed.epoch = start.epoch;
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

GrowthLimit Memory::limit_growth(const std::string& job_uid, std::int64_t gpus, MonoTime now) {
  std::lock_guard lock(mutex_);
  GrowthLimit& limit = growth_limits_[job_uid];
  if (limit.gpus == gpus && limit.until > now) return limit;  // several pods of one try
  if (limit.gpus != gpus) limit = {.gpus = gpus};
  lengthen(limit.in_a_row, limit.until, kGrowthLimitFirst, kGrowthLimitMost, now);
  return limit;
}

std::map<std::string, GrowthLimit> Memory::growth_limits() const {
  std::lock_guard lock(mutex_);
  return growth_limits_;
}

void Memory::hold_back(const std::string& job_uid, HeldBack held) {
  std::lock_guard lock(mutex_);
  held_back_[job_uid] = std::move(held);
}

std::map<std::string, HeldBack> Memory::held_back() const {
  std::lock_guard lock(mutex_);
  return held_back_;
}

std::optional<HeldBack> Memory::held_back(const std::string& job_uid, MonoTime now) const {
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

void Memory::note_refused(const std::string& job_uid, const std::string& request,
                          const Error& error, Duration first, MonoTime now) {
  std::lock_guard lock(mutex_);
  auto& of_job = refusals_[job_uid];
  std::erase_if(of_job, [&](const auto& each) { return now - each.second.until > kRefusalQuiet; });
  Refusal& refusal = of_job.try_emplace(request, Refusal{error}).first->second;
  refusal.error = error;
  refusal.until = now + doubled(first, refusal.in_a_row++, kRefusalPause);
}

std::optional<Refusal> Memory::refusal(const std::string& job_uid, const std::string& request,
                                       MonoTime now) const {
  std::lock_guard lock(mutex_);
  const auto of_job = refusals_.find(job_uid);
  if (of_job == refusals_.end()) return std::nullopt;
  const auto found = of_job->second.find(request);
  if (found == of_job->second.end() || found->second.until <= now) return std::nullopt;
  return found->second;
}

bool Memory::may_tell(const std::string& job_uid, const std::string& subject, MonoTime now) {
  std::lock_guard lock(mutex_);
  Tells& tells = tells_[job_uid][subject];
  if (tells.until > now) return false;
  lengthen(tells.in_a_row, tells.until, kTellFirst, kTellMost, now);
  return true;
}

void Memory::forget_refusals(const std::string& job_uid) {
  std::lock_guard lock(mutex_);
  refusals_.erase(job_uid);
  tells_.erase(job_uid);
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
  growth_limits_.erase(job_uid);
  grown_.erase(job_uid);
  progress_written_.erase(job_uid);
  renewal_tried_.erase(job_uid);
  accounts_.erase(job_uid);
  said_.erase(job_uid);
  told_.erase(job_uid);
  early_.erase(job_uid);
  admitted_.erase(job_uid);
  ends_.erase(job_uid);
  refusals_.erase(job_uid);
  tells_.erase(job_uid);
  made_.erase(job_uid);
  unstarted_.erase(job_uid);
  selected_.erase(job_uid);
}

}  // namespace rubato::control
