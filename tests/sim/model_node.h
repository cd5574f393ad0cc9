// ModelNode: a machine with GPUs and its kubelet. Starts the agents of pods that are bound to it
// (real agents, real workers), ends them gracefully when they are deleted, says how they ended,
// renews its Lease. It can lose its power, be frozen, be cut off (Links). It acts on the true state
// of the API, late by up to its sync period, and only while it reaches the API server.
// One thread; outside of any simulated process, except agents and workers.
#pragma once

#include "apiserver/memory/memory_server.h"
#include "common/testing/sim_disk.h"
#include "tests/sim/edited_network.h"
#include "tests/sim/scenario.h"
#include "tests/sim/witness.h"
#include "worker/agent/agent.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rubato::worker {
class Agent;
struct AgentConfig;
}  // namespace rubato::worker

namespace rubato::sim {

class SimHost;
struct Container;

// What every model stands on.
struct Ground {
  testing::SimExecutor& executor;
  Links& links;
  kube::MemoryServer& server;
  Story& story;
  Witness& witness;
  std::function<World*(const std::string& job_uid)> world;
  Doubling& doubling;
  testing::SimVolume& data;         // that all nodes share
  testing::SimVolume& checkpoints;  // that most of them share, too
  std::uint64_t seed = 1;
  double old_builds = 0;  // share of pods whose workers are of the build before
  WorkerTimes times = {};
  const bool& is_next_version;  // of what starts now
  // A worker reaches a place of a step. True: a fault strikes it there.
  std::function<bool(Container&, std::uint32_t slot, Phase)> reached;

  // A process's network; if it is of the next version, `as_next` edits what it says.
  std::unique_ptr<net::Network> attach(testing::SimProcess& process, const std::string& host,
                                       std::vector<std::string> (*as_next)(std::string)) const {
    std::unique_ptr<net::Network> network = std::make_unique<EditedNetwork>(
        links.network().attach(process, host),
        [this](std::string frame) { return doubling(std::move(frame)); });
    if (!is_next_version) return network;
    return std::make_unique<EditedNetwork>(std::move(network), as_next);
  }
};

constexpr auto kNodeLeaseSeconds = 6;
constexpr Duration kNodeRenew = 2s;
constexpr Duration kPullMost = 1500ms;  // of an image
constexpr Duration kWellAfter = 10s;    // since the last trouble

// A pod's processes on the machine.
struct Container {
  std::string key;  // of the pod, "ns/name"
  std::string uid;
  std::string job_uid;
  int gpus = 0;
  testing::SimProcess* process = nullptr;
  std::unique_ptr<net::Network> network;
  worker::Agent* agent = nullptr;
  SimHost* workers = nullptr;
  std::optional<int> exit_status;  // set when it has ended
  bool reported = false;
  bool terminating = false;
  MonoTime kill_at{};
  MonoTime trouble{};         // the last time something was done to it, or its start
  std::vector<Phase> phases;  // where its workers are, by slot

  // All of its processes at once.
  void freeze();
  void thaw();
  void crash();
};

class ModelNode {
 public:
  ModelNode(const Ground& ground, NodePlan plan);

  const std::string& name() const { return plan_.name; }
  const NodePlan& plan() const { return plan_; }
  void register_node();
  void sync();  // one look of the kubelet

  void power_off();
  void power_on();
  void freeze();
  void thaw();
  // What its checkpoints lie on.
  testing::SimVolume& checkpoints() {
    return plan_.has_own_checkpoints ? own_checkpoints_ : ground_.checkpoints;
  }
  // Workers that start from now on find the token file, or an empty folder.
  void set_data(bool is_mounted) { has_data_ = is_mounted; }
  void set_idle(bool on) { idle_ = on; }  // pods that are bound to it stay Pending
  bool is_up() const { return up_; }
  bool is_frozen() const { return frozen_; }
  MonoTime last_renewed() const { return renewed_; }
  std::map<std::string, std::unique_ptr<Container>>& containers() { return containers_; }  // by uid
  Container* find(const std::string& pod_uid);
  int gpus_in_use() const;
  // Awake, reachable, and nothing was done to it lately, nor after `since`.
  bool is_well(const std::string& pod_uid, MonoTime since) const;
  void note_trouble();

 private:
  void look_at(const SeenPod& pod);
  bool is_pulled(const SeenPod& pod);
  void start(const SeenPod& pod);
  Result<worker::AgentCredentials> credentials_in(const kube::Key& secret);
  void run_agent(Container& container, worker::AgentConfig config);
  void terminate(Container& container, const SeenPod& pod);
  void report(const SeenPod& pod, const char* phase, const std::string& reason, int exit_code);
  void confirm_gone(const SeenPod& pod);
  void forget(std::string uid);
  void renew_lease();
  void copy_half();

  const Ground& ground_;
  const NodePlan plan_;
  bool up_ = true;
  bool frozen_ = false;
  bool idle_ = false;
  bool has_data_ = true;
  testing::SimVolume own_;  // what is there instead of the shared data: nothing, or half of it
  testing::SimVolume own_checkpoints_;
  MonoTime renewed_{};
  std::map<std::string, MonoTime> pulls_;  // by pod uid, since when
  std::map<std::string, std::unique_ptr<Container>> containers_;
};

}  // namespace rubato::sim
