// Volumes of a pod as folders of this machine: emptyDir, secret, configMap, downwardAPI, projected
// and persistentVolumeClaim (one folder per claim, shared by all nodes of the machine). Where no
// mode is named, files of secrets are 0400 and others 0444.
#pragma once

#include "common/json.h"
#include "common/result.h"
#include "kube/client.h"

#include <map>
#include <string>

namespace rubato::localnode {

class Volumes {
 public:
  // `claims`: where PersistentVolumeClaims live, as <claims>/<namespace>/<name>.
  Volumes(kube::Client& client, std::string claims);

  // Volume name → folder, made below `pod_folder`. kNotFound (a Secret or ConfigMap, or a key of
  // one that `items` names, is not there yet) may be tried again; kInvalid may not. Called again,
  // it replaces the files that are others now, one by one.
  Result<std::map<std::string, std::string>> prepare(const json::Value& pod,
                                                     const std::string& pod_folder);

 private:
  Result<std::string> make(const json::Value& pod, const json::Value& volume,
                           const std::string& folder);
  Status add_source(const json::Value& pod, const json::Value& source, const std::string& folder);
  Status add_object(const std::string& ns, const json::Value& source, bool secret,
                    const std::string& folder);

  kube::Client& client_;
  std::string claims_;
};

// Whether what is in the pod's volume of this name is written by this node (a Secret, a ConfigMap,
// of the downward API, projected): its mounts are read-only, as a kubelet's.
bool is_written_here(const json::Value& pod, const std::string& volume);

// A volumeMount's subPath, or its subPathExpr with the container's variables. kInvalid: one is
// unknown.
Result<std::string> sub_path_in(const json::Value& mount,
                                const std::map<std::string, std::string>& environment);

// As a kubelet does: $(NAME) is the variable's value, or stays when there is none; $$ is one $, so
// that $$(NAME) is $(NAME).
std::string expand(const std::string& text, const std::map<std::string, std::string>& known);

// The container's environment: envFrom, and over it env, whose plain values are expanded. Of an
// optional reference to what is not there it has nothing; else kNotFound.
Result<std::map<std::string, std::string>> environment_of(kube::Client& client,
                                                          const json::Value& pod,
                                                          const json::Value& container);

}  // namespace rubato::localnode
