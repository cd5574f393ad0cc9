// Witness: hears of every change that the API server commits, keeps the true state of pods, nodes
// and jobs, and holds each change against what must never happen:
//   - a node's GPUs are promised or used at most once, until their pod is confirmed gone;
//   - allocation epochs, pod ordinals, membership generations and writes, and leaders never go
//   back;
//   - a leader gives a job GPUs only on the last allocation that it wrote itself, and only when
//   none before it can give any away;
//   - a queue never holds more than its limit, nor do all parts of one, and no two are in one cell;
//   - membership is written under the epoch of the replica that writes it;
//   - a new leader drops nobody who is well before one full heartbeat deadline;
//   - events and conditions are sentences ("1 GPUs are free" is none).
// Runs inside the server's commit: it may not call the server. One thread.
#pragma once

#include "apiserver/memory/object_store.h"
#include "common/json.h"
#include "kube/objects/pod.h"
#include "operator/api/training_job.h"
#include "tests/sim/world.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::sim {

constexpr const char* kGpuResource = "nvidia.com/gpu";

struct SeenPod {
  json::Value object;
  std::string ns;
  std::string name;
  std::string uid;
  std::string node;
  std::string job_uid;
  int gpus = 0;
  bool finished = false;
  bool deleting = false;
};

struct SeenJob {
  json::Value object;
  std::string uid;
  std::string queue;
  std::optional<api::Allocation> allocation;
  std::uint64_t generation = 0;
  std::uint64_t leader = 0;
  std::uint64_t membership_writes = 0;
  MonoTime leader_since{};
  MonoTime written{};      // membership, last
  MonoTime known_until{};  // the last write of the leader before this one
  std::map<std::string, std::set<WorkerTuple>> members;  // by pod uid
  std::set<std::int64_t> ordinals;                       // ever given
  std::set<std::string> made_pods;                       // names that have existed
  std::set<std::string> told;                            // reasons of events about it
  bool is_complete = false;
  std::optional<std::uint64_t> completed_by;  // the epoch of the leader that wrote so
};

class Witness {
 public:
  struct Questions {
    std::function<World*(const std::string& job_uid)> world;
    // Is the pod's process there, awake and reachable, was so for the last seconds, and was nothing
    // done to it after `since`?
    std::function<bool(const std::string& pod_uid, MonoTime since)> is_well;
    // The epoch of the replica whose request is being served; none: somebody else's.
    std::function<std::optional<std::uint64_t>()> writing_epoch;
  };
  Witness(Story& story, Questions questions) : story_(story), ask_(std::move(questions)) {}

  void committed(const kube::StoreId& id, const json::Value* object);
  // A patch of the job `key` (JSON Patch) has come from a leader whose answers are not in doubt.
  void asked(const kube::Key& key, const json::Value& patch);

  // What stands is what a backup says; nothing of what came after it counts against what follows.
  void store_went_back(const kube::ObjectStore::Backup& backup);
  std::uint64_t restores() const { return restores_; }  // how often it did

  const std::map<std::string, SeenPod>& pods() const { return pods_; }  // by "ns/name"
  const std::map<std::string, SeenJob>& jobs() const { return jobs_; }  // by "ns/name"
  const std::map<std::string, json::Value>& nodes() const { return nodes_; }
  bool has_secret(const std::string& key) const { return secrets_.contains(key); }
  std::uint64_t changes() const { return changes_; }

 private:
  void read(const kube::StoreId& id, const json::Value& object);
  void pod_changed(const std::string& key, const json::Value* object);
  void job_changed(const std::string& key, const json::Value* object);
  void look_at_allocation(const std::string& key, SeenJob& seen, const api::Allocation& now);
  void look_at_membership(SeenJob& seen, const json::Value& record);
  bool are_in_it(const SeenJob& seen, const std::set<WorkerTuple>& workers) const;
  void check_node(const std::string& node, const std::string& why);
  void check_queue(const std::string& queue);
  void check_zone(const std::string& key, const api::Allocation& allocation) const;
  void check_takeover(const SeenJob& given, std::int64_t leader);
  bool is_held(const std::string& key, const SeenJob& job, const api::AllocatedPod& pod) const;
  void check_cells(const std::string& key, const SeenJob& seen) const;
  int promised(const std::string& node) const;
  int used(const std::string& node) const;
  int capacity(const std::string& node) const;

  Story& story_;
  const Questions ask_;
  std::map<std::string, SeenPod> pods_;
  std::map<std::string, SeenJob> jobs_;
  std::map<std::string, json::Value> nodes_;
  std::map<std::string, int> limits_;  // of queues
  std::map<std::string, std::string> parents_;
  std::set<std::string> secrets_;
  std::uint64_t changes_ = 0;
  std::uint64_t restores_ = 0;
  std::int64_t highest_leader_ = 0;     // that gave GPUs away
  std::int64_t leaders_of_backup_ = 0;  // the highest when a backup was restored
};

}  // namespace rubato::sim
