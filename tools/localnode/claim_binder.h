// ClaimBinder: what makes volumes on a cluster of localnodes. A PersistentVolumeClaim that names no
// StorageClass gets a PersistentVolume, a folder that all nodes of this machine share, and is bound
// to it, as Kubernetes' provisioners and its volume controller do together. Each localnode has one;
// they do the same, so that it does not matter whose write comes first.
#pragma once

#include "common/executor.h"
#include "common/metrics.h"
#include "kube/informer.h"
#include "kube/objects/object.h"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace rubato::localnode {

class ClaimBinder {
 public:
  // `folder`: of claims, <folder>/<namespace>/<name>.
  ClaimBinder(Executor& executor, kube::Client& client, Metrics& metrics, std::string folder);
  ~ClaimBinder();

  void start();
  void stop();

 private:
  void run(const std::stop_token& stop);
  void remove_volumes();
  void bind_all();
  Status bind(const kube::Object& claim);

  Executor& executor_;
  kube::Client& client_;
  std::string folder_;
  kube::Informer<kube::Object> claims_;
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  bool dirty_ = false;
  std::vector<std::string> gone_;  // volumes of claims that were deleted, until the next turn
  Task task_;
};

}  // namespace rubato::localnode
