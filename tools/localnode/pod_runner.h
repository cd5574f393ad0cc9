// PodRunner: one pod's life on this node, on one task: volumes, init containers, containers,
// status, graceful end. A container is a process in a sandbox (sandbox.h); images are not pulled:
// the command is looked up in the settings' PATH. A pod has one life (restartPolicy Never). How it
// ended is written however long the API server is away, as long as the pod is known.
#pragma once

#include "common/executor.h"
#include "common/json.h"
#include "kube/client.h"
#include "tools/localnode/container_log.h"
#include "tools/localnode/gpus.h"
#include "tools/localnode/volumes.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::localnode {

struct RunnerSettings {
  std::string node;
  std::string host_ip;
  std::string root;  // pods live in <root>/pods/<uid>
  std::string path;  // PATH inside containers
  GpuPool gpus;      // empty: of `resource` nothing is given to a pod but its number
  std::string resource;
  std::string library_path;  // LD_LIBRARY_PATH of containers with GPUs; empty: not set
};

class PodRunner {
 public:
  // `pod` as read from the API server; `pod_ip` is its alone.
  PodRunner(Executor& executor, kube::Client& client, const RunnerSettings& settings,
            Volumes& volumes, json::Value pod, std::string pod_ip);
  ~PodRunner();  // kills what still runs

  void start();
  // SIGTERM now, SIGKILL after `grace`; then the pod's object is removed. A shorter grace counts.
  void terminate(Duration grace);
  // The object is gone: kill at once, write nothing.
  void abandon();
  bool is_done() const;
  const std::string& pod_ip() const { return pod_ip_; }
  // Null when the container has not started.
  std::shared_ptr<ContainerLog> log(const std::string& container) const;

 private:
  struct Container {
    std::string name;
    json::Value spec;
    pid_t pid = -1;
    int pipe = -1;
    bool started = false;
    bool exited = false;
    int exit_code = 0;
    std::string start_error;
    WallTime began{}, ended{};
    std::shared_ptr<ContainerLog> log;
    Task pump;
  };

  void run(std::stop_token stop);
  Status prepare(std::stop_token stop);
  Status try_prepare();
  std::size_t gpus_of(const json::Value& container) const;
  void add_gpus(const Container& container, std::map<std::string, std::string>& environment);
  bool run_init_containers(std::stop_token stop);
  Status launch(Container& container);
  void pump_output(Container& container);
  void wait_for_end(std::stop_token stop);
  bool all_exited() const;  // under mutex_
  void signal_all(int signal);
  void fail(const std::string& reason, const std::string& message);
  void write_status(const char* phase, const std::string& reason = "",
                    const std::string& message = "");
  json::Value container_status(const Container& container) const;
  void remove_object();
  void insist(const char* what, const std::function<Status()>& write,
              const std::function<bool()>& is_moot);

  Executor& executor_;
  kube::Client& client_;
  const RunnerSettings& settings_;
  Volumes& volumes_;
  json::Value pod_;
  std::string pod_ip_;
  std::string folder_;
  std::map<std::string, std::string> volume_folders_;
  std::map<std::string, std::map<std::string, std::string>> environments_;  // by container
  GpuLease gpus_;
  std::size_t gpus_given_ = 0;  // of gpus_, to containers that were started
  WallTime began_{};

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::vector<std::unique_ptr<Container>> containers_;
  std::optional<MonoTime> kill_at_;  // terminate() was called
  bool abandoned_ = false;
  std::atomic<bool> done_{false};
  Task task_;
};

}  // namespace rubato::localnode
