// JobProcesses: one job on this machine: the in-memory API server and the coordinator in this
// process, pods as rubato-agent processes with their workers, over TLS on loopback or between
// network namespaces. Each pod is a process group. Kills only what it started, by pid.
#pragma once

#include "apiserver/memory/memory_client.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/net/certificates.h"
#include "common/net/tls_network.h"
#include "operator/coordinator/coordinator.h"
#include "tests/integration/coordinator/node_disks.h"
#include "tests/integration/coordinator/node_networks.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::coordinator {

constexpr std::uint32_t kJobMicroBatches = 8;

// Its defaults are a job whose steps take some milliseconds.
struct JobOptions {
  std::uint64_t steps = 400;
  int layers = 2;
  int hidden = 64;
  std::uint32_t micro_batches = kJobMicroBatches;  // of a step
  int micro = 2;                                   // samples of a micro-batch
  int length = 64;
  int checkpoint_every = 50;
  int evaluate_every = 0;
  double validation = 0;
  bool ledger = false;
  Timing timing;
  NodeNetworks* nodes = nullptr;  // pod n runs in network n, modulo their number; null: on loopback
  int disks = 0;  // pod n sees the checkpoints through disk n, modulo this number; 0: all directly
};

class JobProcesses {
 public:
  struct Pod {
    int number = 0;
    std::string name;
    std::string uid;
    pid_t pid = -1;
    bool leaving = false;
    bool wanted = true;
    std::string log;
    std::string fault_file;  // RUBATO_FAULT_FILE, beside the pace
  };
  explicit JobProcesses(const JobOptions& options);
  ~JobProcesses();

  void lead(std::uint64_t epoch);  // a new Coordinator object on the same port
  void stop_leading();             // and it is gone: connections end
  Pod& start_pod();
  Pod& start_pod(const std::string& fault);  // with a plan (worker/testing/fault_points.h)
  Pod& promise_pod();                        // wanted, and no process of ours is it
  void plan_fault(const Pod& pod, const std::string& fault) const;
  // Every round takes at least this long, from now on; zero: as long as it takes.
  void pace(std::chrono::milliseconds time) const;
  void wish(bool stop = false);
  View view() const;
  std::uint64_t generation() const { return view().generation; }
  // Polls until `done`; false after `limit` (real time).
  bool wait(const std::function<bool()>& done, Duration limit = 120s);
  void kill_pod(Pod& pod);  // agent and workers, SIGKILL
  void signal_pod(const Pod& pod, int signal) const;
  std::vector<pid_t> workers(const Pod& pod) const;
  int wait_exit(Pod& pod, Duration limit = 60s);  // exit status, or -1
  // "step bits" of every committed step in any worker's log; fails on two answers for one step.
  std::map<std::uint64_t, std::string> losses() const;
  std::string job_uid() const { return job_uid_; }
  // What whoever is to attack it needs.
  const net::KeyPair& authority() const { return authority_; }
  std::string token() const;
  net::Endpoint port() const { return port_; }
  std::string metrics() const { return metrics_.expose(); }
  const std::filesystem::path& folder() const { return folder_; }
  void keep_files() { keeps_files_ = true; }
  NodeDisks& disks() { return *disks_; }  // with JobOptions::disks
  std::vector<std::unique_ptr<Pod>> pods;
  std::uint32_t min_workers = 1;
  std::uint32_t start_workers = 1;

 private:
  std::filesystem::path home(int pod) const;  // where its processes live
  void open_disks();
  Pod& add_pod();

  const JobOptions options_;
  bool keeps_files_ = false;
  std::filesystem::path folder_;
  std::unique_ptr<NodeDisks> disks_;
  ThreadExecutor executor_;
  Metrics metrics_;
  net::TlsNetwork network_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
  net::TlsConfig tls_;
  net::KeyPair authority_;
  net::Endpoint port_;
  std::unique_ptr<Coordinator> coordinator_;
  std::string job_uid_;
  std::string training_;
  bool stop_ = false;
};

}  // namespace rubato::coordinator
