// Session: one command's connection to a cluster, and the few ways commands read it.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/rest_client.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::ctl {

constexpr std::int64_t kPage = 500;  // objects of one answer, of a list

// What every command that talks to a cluster takes.
struct ClusterChoice {
  // "": $KUBECONFIG, ~/.kube/config, the local cluster's, then the cluster whose pod this is.
  std::string kubeconfig;
  std::string context;  // of a kubeconfig
  std::string ns;       // "": the kubeconfig's
};

// Where `local` keeps its cluster unless told otherwise: $XDG_STATE_HOME/rubato/local, or
// ~/.local/state/rubato/local.
std::string default_local_state();
std::string local_kubeconfig(const std::string& state);
// The file that a choice means. "": what kube::default_config() takes, which is $KUBECONFIG or, in
// a pod without any of these files, the pod's own cluster.
std::string kubeconfig_for(const ClusterChoice& choice);

class Session {
 public:
  // Errors say how to get a cluster.
  static Result<std::unique_ptr<Session>> open(const ClusterChoice& choice);

  Executor& executor() { return executor_; }
  kube::Client& client() { return *client_; }
  kube::RestClient& rest() { return *client_; }  // for what a Client cannot: raw paths, streams
  const std::string& ns() const { return ns_; }
  const std::string& asked_ns() const { return asked_ns_; }  // of -n; "": not given
  WallTime wall() { return executor_.clock().wall(); }

  // Of TrainingJobs, pods, events …: all of a namespace ("": all namespaces).
  Result<std::vector<json::Value>> list(const kube::ResourceType& type, const std::string& ns,
                                        const kube::ListOptions& options = {});

 private:
  Session() = default;
  ThreadExecutor executor_;
  Metrics metrics_;
  std::unique_ptr<kube::RestClient> client_;
  std::string ns_;
  std::string asked_ns_;
};

// The error of a request, with a way out where one is known and it names none.
Error advised(const Error& error);

}  // namespace rubato::ctl
