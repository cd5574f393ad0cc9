// LeaderElector: at most one of several replicas leads, by a Lease of the API server.
//
// Clocks of other machines are never compared: a candidate takes the lease over only when its own
// clock has seen no change of it for `lease`. The leader writes every `retry` and gives up when no
// write got through for `renew`. An API server gives no fencing, so leaders carry two things into
// what they do: epoch() goes with every decision (receivers refuse lower ones), and a disruptive
// write is only begun while valid_until() is further away than the write may take.
//
// Give the elector a client of its own, with a request timeout of at most renew / 2: renewals must
// not wait behind other requests.
//
// A leader that lost its lease never leads again: on_lost is called once, and the process should
// end (another replica, or its own next life, goes on).
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/rng.h"
#include "kube/client.h"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace rubato::kube {

// lease > renew > 1.2 × retry, or the replicas flap.
struct LeaseTiming {
  Duration lease = 15s;
  Duration renew = 10s;
  Duration retry = 2s;
};

// The annotation of the Lease where the leader says how it can be reached.
constexpr const char* kLeaderAddressAnnotation = "rubato.dev/leader-address";

struct LeaderElectionConfig {
  Key lease;             // namespace and name of the Lease
  std::string identity;  // unique for each life of a process, e.g. pod name + random
  std::string address;   // "host:port" for kLeaderAddressAnnotation; may be empty
  LeaseTiming timing;
  std::uint64_t seed = 1;  // of the jitter
  // The highest epoch that anything outside the Lease names; asked when the Lease is taken, and the
  // write that takes it goes above. A Lease can be deleted, or restored from a backup; what was
  // done under its later epochs is still there. Null: nothing does.
  std::function<std::int64_t()> epoch_floor = {};
};

// What a replica last read of the Lease.
struct LeaderRecord {
  std::string holder;  // "" when nobody holds it
  std::string address;
  std::int64_t epoch = 0;
};

class LeaderElector {
 public:
  LeaderElector(Client& client, Executor& executor, Metrics& metrics, LeaderElectionConfig config);
  ~LeaderElector();  // does not release: see release()

  // `on_lost`: called once, from the elector's task, when the lease is gone.
  void start(std::function<void(const Error&)> on_lost);

  // True once this replica leads; false at the deadline, on `stop`, or when it was lost again.
  bool wait_until_leader(MonoTime deadline, std::stop_token stop = {});
  bool is_leader() const;
  // We led, and never will again in this life.
  bool is_lost() const;
  // No other replica leads before this time. In the past when we do not lead.
  MonoTime valid_until() const;
  // The fencing token: leaseTransitions of the Lease, at least 1 and higher for each new leader;
  // 0 when we have never led. Stays after a loss.
  std::int64_t epoch() const;
  // Whoever leads, as last read (for NOT_LEADER answers).
  LeaderRecord observed() const;
  // False when we lead but could not renew for `lease` + `tolerance`: the process hangs.
  bool is_healthy(Duration tolerance) const;

  // Clean stop: call after all work of the leader has ended. Ends the task and gives the lease
  // back, so that the next replica need not wait. kOk when there is nothing to give back.
  Status release();

 private:
  struct Seen {  // the Lease as last read or written
    json::Value object;
    MonoTime changed{};  // on our clock
  };
  struct InDoubt {  // our last write, while nobody has said that it was done
    std::string renew_time;
    MonoTime sent{};
  };

  void run(std::stop_token stop);
  bool acquire(std::stop_token stop);
  Status renew_until_lost(std::stop_token stop);
  Status try_once();
  Status look();  // reads the Lease into seen_
  Status create();
  Status write(bool takeover);
  Status give_back();
  bool is_done_after_all();
  bool is_held_by_other(MonoTime now) const;
  json::Value make_lease(std::int64_t transitions, bool takeover) const;
  std::int64_t next_epoch() const;
  void adopt(const json::Value& lease, MonoTime sent, std::int64_t transitions);
  void remember(const json::Value& lease);
  void become_leader();

  Client& client_;
  Executor& executor_;
  LeaderElectionConfig config_;
  Rng rng_;
  Gauge& status_gauge_;
  Counter& slow_path_;
  std::function<void(const Error&)> on_lost_;
  std::optional<Seen> seen_;         // the elector's task only (and release() after it)
  std::optional<InDoubt> in_doubt_;  // the same

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  bool leading_ = false;
  bool lost_ = false;
  MonoTime renewed_{};  // when the last write that got through was sent
  std::int64_t epoch_ = 0;
  LeaderRecord observed_;
  Task task_;
};

}  // namespace rubato::kube
