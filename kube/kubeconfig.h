// Where the API server is and how to speak to it: from a kubeconfig file, or from the files that
// Kubernetes puts into each pod. Wraps yaml-cpp.
#pragma once

#include "kube/credentials.h"

#include <string>
#include <utility>
#include <vector>

namespace rubato::kube {

struct RestConfig {
  std::string server;           // see parse_server_url()
  std::string tls_server_name;  // the name to find in the server's certificate; "": the host
  bool insecure_skip_tls_verify = false;
  CredentialConfig credentials;
  std::string default_namespace = "default";
  // Impersonate-User, Impersonate-Group …, in order.
  std::vector<std::pair<std::string, std::string>> headers;
};

struct KubeconfigOptions {
  std::string path;     // "": $KUBECONFIG (a list), then ~/.kube/config
  std::string context;  // "": current-context
};

// Reads and merges kubeconfig files; the first that names something wins. Unknown keys are
// ignored; what we cannot honour (proxy-url, auth-provider, an interactive plugin) is kInvalid.
Result<RestConfig> load_kubeconfig(const KubeconfigOptions& options = {});

// Where a pod finds its service account.
inline constexpr const char* kServiceAccountFolder =
    "/var/run/secrets/kubernetes.io/serviceaccount";
// A pod's service account. kNotFound outside a cluster.
Result<RestConfig> in_cluster_config(const std::string& folder = kServiceAccountFolder);

// An explicit path or $KUBECONFIG, else the cluster we run in, else ~/.kube/config. A context is
// looked for in kubeconfig files alone: the cluster we run in has none.
Result<RestConfig> default_config(const KubeconfigOptions& options = {},
                                  const std::string& folder = kServiceAccountFolder);

}  // namespace rubato::kube
