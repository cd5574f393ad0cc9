// SimCluster: one elastic job in virtual time. Real: the coordinator, the agents, the in-memory API
// server. Modelled: workers (ModelWorker), the controller that replaces lost pods. Everything
// random comes from the seed; equal seeds give equal runs.
#pragma once

#include "common/metrics.h"
#include "common/testing/sim_executor.h"
#include "common/testing/sim_network.h"
#include "operator/coordinator/coordinator.h"
#include "operator/kube/memory/memory_client.h"
#include "tests/sim/world.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {
class Agent;
class WorkerHost;
}  // namespace rubato::worker

namespace rubato::sim {

struct SimOptions {
  std::uint64_t seed = 1;
  bool verbose = false;
  std::uint32_t micro_batches = 12;
  std::uint64_t steps = 2000;
  std::uint64_t redo_every = 41;
  int pods = 3;
  std::uint32_t slots = 1;
  std::uint32_t min_workers = 2;
  int faults = 14;  // drawn over `trouble`
  Duration trouble = 40s;
  Duration progress_limit = 20s;  // after the last fault: the next commit
  Duration finish_limit = 300s;   // after the last fault: the end of the job
};

struct SimResult {
  bool ok = false;
  std::string what;  // when not ok
  double virtual_seconds = 0;
  std::uint64_t generations = 0;
  std::uint64_t decisions = 0;
  std::uint64_t digest = 0;
  std::vector<coordinator::Change> changes;  // as the last coordinator saw them
};

class SimCluster {
 public:
  explicit SimCluster(SimOptions options);
  ~SimCluster();

  // The whole story: start, trouble, and a quiet end.
  SimResult run();

  // Pieces, for tests that tell a story of their own.
  testing::SimExecutor& executor() { return executor_; }
  World& world() { return world_; }
  void start();
  bool run_until(const std::function<bool()>& done, Duration limit);  // stops at a violation
  std::optional<coordinator::View> view() const;
  struct Pod {
    std::string name;
    std::string uid;
    std::string host;
    testing::SimProcess* process = nullptr;
    std::unique_ptr<net::Network> network;
    worker::Agent* agent = nullptr;
    worker::WorkerHost* workers = nullptr;
    std::uint32_t gpu_order = 0;
    bool gone = false;     // its process has ended or crashed
    bool wanted = true;    // in the wish
    bool leaving = false;  // a planned leave
  };
  std::vector<std::unique_ptr<Pod>>& pods() { return pods_; }
  Pod& add_pod();
  void crash_pod(Pod& pod);
  void stop_wanting(Pod& pod);
  void wish();  // tells the coordinator what is wanted now
  void crash_coordinator();
  void start_coordinator();
  void set_stop(bool stop) {
    stop_ = stop;
    wish();
  }

 private:
  struct Faults;
  struct Operator;
  void say(const std::string& what);
  void draw_fault(Rng& rng);
  void controller_pass();
  int running() const;

  const SimOptions options_;
  testing::SimExecutor executor_;
  testing::SimNetwork network_;
  World world_;
  testing::SimProcess& server_process_;
  std::unique_ptr<kube::MemoryServer> server_;
  std::unique_ptr<Faults> faults_;
  Metrics metrics_;
  std::string job_uid_;
  std::vector<std::unique_ptr<Pod>> pods_;
  std::unique_ptr<Operator> operator_;
  std::vector<std::unique_ptr<Operator>> buried_;
  std::uint64_t epoch_ = 0;
  bool stop_ = false;
  int pod_count_ = 0;
};

}  // namespace rubato::sim
