// JobProcesses: one job on this machine: the in-memory API server and the coordinator in this
// process, pods as rubato-agent processes with their workers, over loopback TLS. Kills only what it
// started, by pid.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "common/net/tls_network.h"
#include "operator/coordinator/coordinator.h"
#include "operator/kube/memory/memory_client.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::coordinator {

class JobProcesses {
 public:
  struct Pod {
    std::string name;
    std::string uid;
    pid_t pid = -1;
    bool leaving = false;
    bool wanted = true;
    std::string log;
  };
  explicit JobProcesses(std::uint64_t steps);
  ~JobProcesses();

  void lead(std::uint64_t epoch);  // a new Coordinator object on the same port
  void stop_leading();             // and it is gone: connections end
  Pod& start_pod();
  void wish(bool stop = false);
  View view() const;
  std::uint64_t generation() const { return view().generation; }
  // Polls until `done`; false after `limit` (real time).
  bool wait(const std::function<bool()>& done, Duration limit = 60s);
  void kill_pod(Pod& pod);  // agent and workers, SIGKILL
  std::vector<pid_t> workers(const Pod& pod) const;
  int wait_exit(Pod& pod, Duration limit = 20s);  // exit status, or -1
  // "step bits" of every committed step in any worker's log; fails on two answers for one step.
  std::map<std::uint64_t, std::string> losses() const;
  std::string job_uid() const { return job_uid_; }
  std::vector<std::unique_ptr<Pod>> pods;
  std::uint32_t min_workers = 1;
  std::uint32_t start_workers = 1;

 private:
  std::filesystem::path folder_;
  ThreadExecutor executor_;
  Metrics metrics_;
  net::TlsNetwork network_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
  net::TlsConfig tls_;
  net::Endpoint port_;
  std::unique_ptr<Coordinator> coordinator_;
  std::string job_uid_;
  std::string training_;
  bool stop_ = false;
};

}  // namespace rubato::coordinator
