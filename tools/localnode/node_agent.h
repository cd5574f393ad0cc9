// NodeAgent: this machine (or a share of it) as a Kubernetes node. Registers the Node, renews its
// Lease, runs the pods that are bound to it, and removes those that are deleted. A node lives as
// long as this process: killing it with its process group is a power cut.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/client.h"
#include "kube/informer.h"
#include "kube/objects/object.h"
#include "tools/localnode/claim_binder.h"
#include "tools/localnode/pod_runner.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace rubato::localnode {

struct NodeSettings {
  std::string name;
  std::string address;   // 127.x.y.1: the node's; its pods get 127.x.y.2 … 254
  int kubelet_port = 0;  // where the log server listens
  std::string resource = "rubato.dev/slot";
  int slots = 1;
  std::string gpu_type = "CPU";  // label nvidia.com/gpu.product
  std::string root;              // working folder of this node
  std::string claims;            // folder of PersistentVolumeClaims
  std::string path;              // PATH inside pods
  GpuPool gpus;                  // what the slots are; empty: numbers alone
  std::string gpu_devices;       // where their device nodes are
  std::string library_path;      // LD_LIBRARY_PATH of containers with GPUs; empty: not set
  int cpus = 1;
  std::int64_t memory_bytes = 0;
};

constexpr auto kLeaseRenew = 1s;
constexpr int kLeaseSeconds = 4;
constexpr auto kNodeStatusPeriod = 10s;
constexpr std::size_t kPodsMax = 250;
constexpr std::size_t kGonePodsKept = 100;  // whose logs stay on the disk

class NodeAgent {
 public:
  NodeAgent(Executor& executor, kube::Client& client, Metrics& metrics, NodeSettings settings);
  ~NodeAgent();

  // Registers and starts. kAlreadyExists when a living node has this name.
  Status start();
  // Clean stop: pods get their grace, the node says NotReady.
  void stop();
  // For the log server. kNotFound with a reason when there is none.
  Result<std::shared_ptr<ContainerLog>> log(const std::string& ns, const std::string& pod,
                                            const std::string& container) const;

 private:
  Status register_node();
  json::Value node_object() const;
  json::Value node_status(bool ready) const;
  void renew_lease(std::stop_token stop);
  Status write_lease();
  void reconcile(std::stop_token stop);
  void reconcile_once();
  void drop_gone(std::set<std::string> present);
  void start_runner(const kube::Object& pod);
  std::string free_address() const;

  Executor& executor_;
  kube::Client& client_;
  NodeSettings settings_;
  RunnerSettings runner_settings_;
  Volumes volumes_;
  ClaimBinder claim_binder_;
  kube::Informer<kube::Object> pods_;
  std::string boot_id_;

  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  bool dirty_ = false;
  std::map<std::string, std::unique_ptr<PodRunner>> runners_;  // by pod uid
  std::map<kube::Key, std::string> uids_;
  Task lease_task_;
  Task pods_task_;
};

}  // namespace rubato::localnode
