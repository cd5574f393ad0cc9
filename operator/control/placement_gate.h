// PlacementGate: two tasks of a leader have a say in where pods are. The scheduler writes
// allocations; the job controller makes pods after them and binds them. Each acts on a view of the
// API that is always a little old. The gate puts what they do in order, so that no GPU is given
// twice (P8):
//
//   - a pod is placed after the newest allocation only, and no allocation is written while a pod of
//     the job is being placed, or while it is in doubt whether an earlier one was written;
//   - no pod is placed before a new leader has seen what earlier ones decided (SchedulerLoop), nor
//     after anything older than that, however old its cache of jobs is;
//   - a pod counts as bound from before the request is sent until the cache shows it;
//   - the name of a pod is used once: one that was made and is absent has gone.
//
// Thread-safe, no I/O. Bounded by the jobs, their pods, and the bindings that the cache has not
// shown yet.
#pragma once

#include "common/clock.h"
#include "kube/objects/pod.h"
#include "kube/store.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::control {

class PlacementGate {
 public:
  // Until then no pod is placed. `stands`: by job uid, the epoch of the allocation that the API
  // server has now; what is older places nothing, nor does a job that is neither named here nor
  // decided on since: while it was not looked at its GPUs may have been given to others.
  void open(const std::map<std::string, std::int64_t>& stands);

  // Held by the job controller around making and binding pods after the allocation of `epoch`.
  // False when another was decided on since, or is about to be: the cache will show it.
  class Placing {
   public:
    Placing(PlacementGate& gate, const std::string& job_uid, std::int64_t epoch);
    ~Placing();
    Placing(const Placing&) = delete;
    Placing& operator=(const Placing&) = delete;
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    PlacementGate* gate_;
    std::string job_uid_;
  };

  // Before the request is sent. `not_bound` when it certainly was not done.
  void binds(const kube::Pod& pod, const std::string& node, MonoTime now);
  void not_bound(const std::string& pod_uid);

  // Every change that the pod informer delivers.
  void saw(const kube::Change<kube::Pod>& change);
  void note_made(const std::string& job_uid, const std::string& pod_name);
  bool was_made(const std::string& job_uid, const std::string& pod_name) const;

  // Around writing an allocation. False: a pod is being placed, or an earlier write is in doubt;
  // try again later. Between the two calls the job's pods are not placed. `epoch`: of the
  // allocation that stands for sure; none when ours was not written.
  bool begin_decision(const std::string& job_uid);
  void end_decision(const std::string& job_uid, std::optional<std::int64_t> epoch = {});

  // Pods that are bound, or may be, though the cache may not show it: as they will look.
  std::vector<std::shared_ptr<const kube::Pod>> unseen() const;
  // Those of them that were bound before `then`: worth a question to the API server.
  std::vector<std::shared_ptr<const kube::Pod>> unseen_since_before(MonoTime then) const;

  void forget_job(const std::string& job_uid);

 private:
  struct Job {
    int placing = 0;
    bool deciding = false;
    std::optional<std::int64_t> epoch;  // none: what stands is not known
    std::set<std::string> made;         // names of pods
  };
  struct Binding {
    std::shared_ptr<const kube::Pod> pod;
    MonoTime since{};
  };

  mutable std::mutex mutex_;
  bool open_ = false;
  std::map<std::string, Job> jobs_;
  std::map<std::string, Binding> unseen_;  // by pod uid
};

}  // namespace rubato::control
