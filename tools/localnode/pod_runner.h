// PodRunner: one pod's life on this node, on one task: volumes, init containers, containers,
// status, graceful end. A container is a process in a sandbox (sandbox.h); images are not pulled:
// the command is looked up in the settings' PATH. A pod has one life (restartPolicy Never). The
// next init container starts when the one before has ended well, or at once after a sidecar (an
// init container with restartPolicy Always): these go on beside the containers, and are ended after
// them, the last first; one that ends by itself is not started again, and how it ended does not
// count. The status is written at each start and end of a container. How the pod ended is written
// however long the API server is away, as long as the pod is known. A pod ends when its last
// process has: one that outlives SIGKILL (it waits for a disk) keeps its GPUs, its folder and its
// object.
#pragma once

#include "common/executor.h"
#include "common/json.h"
#include "kube/client.h"
#include "tools/localnode/container_log.h"
#include "tools/localnode/gpus.h"
#include "tools/localnode/sandbox.h"
#include "tools/localnode/volumes.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace rubato::localnode {

constexpr std::int64_t kGraceSecondsMost = 1 << 30;  // 34 years

struct RunnerSettings {
  std::string node;
  std::string host_ip;
  std::string root;         // pods live in <root>/pods/<uid>
  std::string path;         // PATH inside containers
  GpuPool gpus;             // empty: of `resource` nothing is given to a pod but its number
  std::string gpu_devices;  // whose nvidia* are in containers with GPUs
  std::string resource;
  std::string library_path;  // LD_LIBRARY_PATH of containers with GPUs; empty: not set
};

// GPUs that a pod takes as a whole: what its containers and sidecars have at the same time, or an
// init container with the sidecars that were started before it. `gpus_of`: a container's.
std::size_t gpus_of_pod(const json::Value& pod,
                        const std::function<std::size_t(const json::Value&)>& gpus_of);

class PodRunner {
 public:
  // `pod` as read from the API server; `pod_ip` is its alone.
  PodRunner(Executor& executor, kube::Client& client, const RunnerSettings& settings,
            Volumes& volumes, json::Value pod, std::string pod_ip);
  // Kills what still runs, and waits until it is gone: maybe forever, unless is_done().
  ~PodRunner();

  void start();
  // SIGTERM now, SIGKILL after `grace`; then the pod's object is removed. A shorter grace counts.
  void terminate(Duration grace);
  // The object is gone: kill at once, write nothing.
  void abandon();
  // Nothing runs any more, and nothing is left to write.
  bool is_done() const;
  const std::string& pod_ip() const { return pod_ip_; }
  // Null when the container has not started.
  std::shared_ptr<ContainerLog> log(const std::string& container) const;

 private:
  enum class Kind { kInit, kSidecar, kMain };
  struct Container {  // what changes after its start: under mutex_
    Kind kind = Kind::kMain;
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
  struct Failure {
    std::string reason;
    std::string message;
  };

  void run(std::stop_token stop);
  std::optional<Failure> run_containers(std::stop_token stop);
  Status prepare(std::stop_token stop);
  Status try_prepare();
  std::size_t gpus_of(const json::Value& container) const;
  void add_gpus(const Container& container, SandboxSpec& spec);
  Status add_volumes(const Container& container, SandboxSpec& spec) const;
  Status run_init_containers();
  Container& start_container(const json::Value& spec, Kind kind);
  Status launch(Container& container);
  void pump_output(Container& container);
  // Until all of the kind have ended, by themselves or because the pod is to end.
  void wait_for_end(Kind kind);
  void end_sidecars();
  void end(const std::vector<Container*>& containers, MonoTime latest);
  bool have_ended(Kind kind) const;  // under mutex_
  std::size_t exits() const;         // under mutex_
  bool is_to_end() const;            // under mutex_
  void write_end(const std::optional<Failure>& failure);
  void write_status(const char* phase, const std::string& reason = "",
                    const std::string& message = "");
  json::Value condition(const char* type, bool value);
  json::Value container_statuses(bool init) const;  // under mutex_
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
  bool initialized_ = false;
  std::map<std::string, std::pair<bool, WallTime>> conditions_;  // and since when

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::vector<std::unique_ptr<Container>> containers_;  // that were started; none ever goes
  std::optional<MonoTime> kill_at_;                     // terminate() was called
  bool abandoned_ = false;
  std::atomic<bool> done_{false};
  Task task_;
};

}  // namespace rubato::localnode
