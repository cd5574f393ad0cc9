// Memory: what the leader knows beside the API, shared by the scheduler loop and the job
// controller. All of it is a convenience: a new leader starts with none and learns it again. Its
// waits are timed by the steady clock: a wall clock that is set makes none longer or shorter.
// Thread-safe.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "kube/objects/pod.h"
#include "operator/control/objects.h"
#include "operator/control/status_diff.h"
#include "operator/coordinator/gpu_time.h"
#include "scheduler/plan.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace rubato::control {

constexpr auto kEarlyEndFirst = std::chrono::milliseconds(500);  // wait after the second in a row
constexpr auto kEarlyEndMost = std::chrono::seconds(60);
constexpr auto kEarlyEndQuiet = std::chrono::minutes(5);  // then a row is over
constexpr std::size_t kLostKept = 256;
constexpr auto kRenewalPause = std::chrono::seconds(10);  // between two tries at a job's Secret

// What the API server refused a job is asked again so soon: what it forbids at a steady pace, for
// pauses that double would miss the end of the gang's patience; after any other error first soon.
constexpr auto kRefusalPause = std::chrono::seconds(10);
constexpr auto kErrorPause = std::chrono::milliseconds(100);  // doubles up to kRefusalPause
constexpr auto kRefusalQuiet = std::chrono::minutes(5);       // then it is forgotten
struct Refusal {
  Error error;
  MonoTime until{};
  int in_a_row = 0;
};

// Between two events that say what was refused. An object's events are bounded (kube/events.h), and
// others are to be heard beside these.
constexpr auto kTellFirst = std::chrono::seconds(10);
constexpr auto kTellMost = std::chrono::minutes(30);

// A job whose start failed gets what is free only, first for kSpareOnly times as long as its pods
// had to start, and twice as long after each further one in a row: else one whose pods cannot start
// would stop healthy ones again and again.
constexpr int kSpareOnly = 2;
constexpr auto kSpareOnlyMost = std::chrono::minutes(60);
struct FailedStarts {
  int in_a_row = 0;
  std::int64_t generation = 0;  // of the spec that did not start: with another one it is tried anew
  MonoTime spare_only_until{};
  std::int64_t epoch = 0;  // of the allocation of the last
};
// Of which spec, and with which allocation.
struct FailedStart {
  std::int64_t generation = 0;
  std::int64_t epoch = 0;
};

// The API server let a job have no more pods than make up `gpus` (a quota, a policy): it is not
// given more before `until`, and twice as long after each further refusal at that size, unless it
// could be grown for kGrowthLimitMost since: then the waits begin anew.
constexpr auto kGrowthLimitFirst = std::chrono::seconds(10);
constexpr auto kGrowthLimitMost = std::chrono::minutes(30);
struct GrowthLimit {
  std::int64_t gpus = 0;
  int in_a_row = 0;
  MonoTime until{};
};

// A job that waits before it may be scheduled again.
struct HeldBack {
  MonoTime until{};
  std::string reason;  // of its condition Queued
  std::string why;
};
// `now` and `wall` are of one moment.
std::string to_text(const HeldBack& held, MonoTime now, WallTime wall);
// The time of day that a steady time will be, for people.
inline WallTime wall_of(MonoTime time, MonoTime now, WallTime wall) { return wall + (time - now); }

// The last sign of life of a node: its Lease, by our steady clock.
struct Renewal {
  MonoTime seen{};
  Duration duration{};  // for so long it counts
};

// What the last round said of a job.
struct JobVerdict {
  sched::Outcome outcome = sched::Outcome::kPlaced;
  sched::Reason reason = sched::Reason::kPlaced;
  sched::Explanation told;
  std::string ignores_deadline;  // the policy, if the job has a deadline and it looks at none
  std::optional<WallTime> expected_start = {};  // of one that waits; none: not known
  bool operator==(const JobVerdict&) const = default;
};

// How often a status is written for nothing but progress while `jobs` are led: each `least` where
// few are, for people look at them; 20 writes a second in all until each job has one in 5 s; and
// 200 a second in all, which take more than a core of the API server.
Duration progress_period(std::size_t jobs, Duration least);

class Memory {
 public:
  void set_verdicts(std::map<sched::JobId, JobVerdict> verdicts);
  std::optional<JobVerdict> verdict(const std::string& job_uid) const;

  // "namespace/name" or a pod uid. Of more than kLostKept of a job those that `is_there` does not
  // know are forgotten.
  void note_lost(const std::string& job_uid, const std::string& pod);
  void forget_lost(const std::string& job_uid,
                   const std::function<bool(const std::string& pod)>& is_there);
  std::set<std::string> lost_pods() const;
  std::set<std::string> lost_pods(const std::string& job_uid) const;

  // Until its Lease is renewed, or the node is forgotten: at once, if it is not there by then.
  void suspect_node(const std::string& node, MonoTime since, const std::function<bool()>& is_there);
  std::map<std::string, MonoTime> suspects() const;
  void forget_node(const std::string& node);  // it is gone

  // Each state of a node's Lease as the watch shows it; `gone`: the Lease was deleted.
  void note_lease(const NodeLease& lease, bool gone, MonoTime now, WallTime wall);
  // When it was renewed, by our clock, for the node's may differ: that is when we saw it, or, until
  // we have seen one, as long ago as the node wrote, and now where that is yet to come.
  Renewal renewal(const NodeLease& lease, MonoTime now, WallTime wall) const;

  // A pod of the allocation ended before the job did: the more of them in a row, the longer the job
  // waits before it gets another. A uid counts once. `why`: what became of the pod, for people.
  void note_ended_early(const std::string& job_uid, const std::string& pod_uid,
                        const std::string& why, MonoTime now);

  // The pod that the API server would have made of the job's template, as this leader tried it;
  // null: it did not.
  void note_admitted(const std::string& job_uid, kube::Pod pod);
  std::shared_ptr<const kube::Pod> admitted(const std::string& job_uid) const;

  // When this leader first saw that the job is being deleted, or that it is finished.
  MonoTime deleted_since(const std::string& job_uid, MonoTime now);
  MonoTime finished_since(const std::string& job_uid, MonoTime now);

  // This leader had the pod made.
  void note_made(const std::string& job_uid, const std::string& pod, MonoTime now);
  // When it had the last of those pods made that came with this generation, which has taken its
  // first step; none: it made none of them. `members`: the names of all pods in it.
  std::optional<MonoTime> newest_made(const std::string& job_uid, std::uint64_t generation,
                                      const std::set<std::string>& members);
  void forget_made(const std::string& job_uid,
                   const std::function<bool(const std::string& pod)>& may_come);

  // When this leader first saw the pod (its start_key) wait to be made, started, or heard of.
  MonoTime waits_since(const std::string& job_uid, const std::string& pod, MonoTime now);
  // A pod of no use (its key): it leaves the allocation once its node is on the job's list of
  // avoided ones or, where it was not made, at once.
  void give_up(const std::string& job_uid, const std::string& pod);
  // Pods that are gone, or came, need not be remembered for it.
  void forget_unstarted(const std::string& job_uid,
                        const std::function<bool(const std::string& pod)>& waits);
  std::set<std::string> given_up() const;  // keys
  std::set<std::string> given_up(const std::string& job_uid) const;

  // For which node this leader asked for the volume of a claim, until that is made or refused.
  void note_selected(const std::string& job_uid, const std::string& claim_uid,
                     const std::string& node);
  std::optional<std::string> take_selected(const std::string& job_uid,
                                           const std::string& claim_uid);

  // A running job was given more GPUs; kept until the job is forgotten.
  void note_grown(const std::string& job_uid, MonoTime now);
  std::set<std::string> grown_since(MonoTime since) const;

  // Its pods did not all start within `time`, or it trains. An allocation counts once, however
  // often it is tried to give that back.
  void note_failed_start(const std::string& job_uid, const FailedStart& start, Duration time,
                         MonoTime now);
  void note_started(const std::string& job_uid);
  std::map<std::string, FailedStarts> failed_starts() const;

  GrowthLimit limit_growth(const std::string& job_uid, std::int64_t gpus, MonoTime now);
  std::map<std::string, GrowthLimit> growth_limits() const;

  void hold_back(const std::string& job_uid, HeldBack held);
  std::map<std::string, HeldBack> held_back() const;
  // What still holds the job back at `now`.
  std::optional<HeldBack> held_back(const std::string& job_uid, MonoTime now) const;

  // At most one write of mere progress per job and period.
  bool may_write_progress(const std::string& job_uid, MonoTime now, Duration period);
  // At most one try to renew the job's Secret, or to make it anew, in kRenewalPause, however often
  // it fails.
  bool may_renew(const std::string& job_uid, MonoTime now);

  // What the API server refused of a job: `request` is not made again before the pause is over,
  // however often the job is looked at, and what was answered then counts until then. The pause is
  // `first`, twice as long each time in a row, kRefusalPause at most.
  void note_refused(const std::string& job_uid, const std::string& request, const Error& error,
                    Duration first, MonoTime now);
  std::optional<Refusal> refusal(const std::string& job_uid, const std::string& request,
                                 MonoTime now) const;
  // Whether an event about this subject is due: the first, then after pauses that double, kTellMost
  // at most, until that long was quiet.
  bool may_tell(const std::string& job_uid, const std::string& subject, MonoTime now);
  // It may have its pods now: what is refused from here on is news.
  void forget_refusals(const std::string& job_uid);

  // All GPU time of the job: what its status said when this leader first saw it, and what the
  // coordinator counted since. `since` tells one count of the coordinator from the next.
  coordinator::GpuSeconds gpu_seconds(const std::string& job_uid,
                                      const coordinator::GpuSeconds& in_status, MonoTime since,
                                      const coordinator::GpuSeconds& counted);
  // True the first time: for what a job's events should say once, not at each reconcile.
  bool say_once(const std::string& job_uid, const std::string& what);
  // What the events about the job said last of each subject (a condition's type, "rescales"). A
  // subject's first word is what the status said before this leader wrote any: what changed since
  // then is news until it is told, also where the answer to the write was lost, and only once, also
  // where the cache is behind our own writes.
  void note_told_before(const std::string& job_uid, const std::string& subject,
                        const std::string& said);
  bool is_news(const std::string& job_uid, const std::string& subject, const std::string& said);

  StatusDiff& status_diff() { return status_diff_; }

  void forget_job(const std::string& job_uid);

 private:
  mutable std::mutex mutex_;
  std::map<sched::JobId, JobVerdict> verdicts_;
  std::map<std::string, std::set<std::string>> lost_;
  std::map<std::string, MonoTime> suspects_;
  struct Renewed {
    WallTime written{};  // by the node's clock
    MonoTime seen{};
  };
  std::map<std::string, Renewed> renewals_;  // by node, while it has a Lease
  std::map<std::string, HeldBack> held_back_;
  std::map<std::string, FailedStarts> failed_starts_;
  std::map<std::string, GrowthLimit> growth_limits_;
  std::map<std::string, MonoTime> grown_;
  struct EarlyEnds {
    std::set<std::string> pods;
    int streak = 0;
    MonoTime last{};
  };
  std::map<std::string, EarlyEnds> early_;
  std::map<std::string, std::shared_ptr<const kube::Pod>> admitted_;
  struct Ends {
    std::optional<MonoTime> deleted, finished;
  };
  std::map<std::string, Ends> ends_;
  struct Made {
    std::map<std::string, MonoTime> pods;  // that have not taken part yet
    std::uint64_t generation = 0;          // that was asked about last
    std::optional<MonoTime> newest;        // of it
  };
  std::map<std::string, Made> made_;
  struct Unstarted {
    std::map<std::string, MonoTime> waiting;  // start_keys
    std::set<std::string> given_up;           // start_keys and refusal_keys
  };
  std::map<std::string, Unstarted> unstarted_;                          // bounded by the job's pods
  std::map<std::string, std::map<std::string, std::string>> selected_;  // bounded by its claims
  std::map<std::string, MonoTime> progress_written_;
  std::map<std::string, MonoTime> renewal_tried_;
  std::map<std::string, std::map<std::string, Refusal>> refusals_;  // of the last kRefusalQuiet
  struct Tells {
    int in_a_row = 0;
    MonoTime until{};
  };
  std::map<std::string, std::map<std::string, Tells>> tells_;  // by subject
  struct Account {
    coordinator::GpuSeconds before;  // of counts that have ended
    MonoTime since{};
    coordinator::GpuSeconds counted;
  };
  std::map<std::string, Account> accounts_;
  std::map<std::string, std::set<std::string>> said_;               // bounded by the job's pods
  std::map<std::string, std::map<std::string, std::string>> told_;  // bounded by the conditions
  StatusDiff status_diff_;
};

}  // namespace rubato::control
