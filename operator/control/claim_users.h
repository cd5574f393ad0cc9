// Who uses claims whose volumes are for one node, or one pod, at a time. A value of one capture.
#pragma once

#include "operator/control/volumes.h"
#include "scheduler/model/cluster_state.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace rubato::control {

struct ClaimUser {
  std::string pod;  // of the claim's namespace; it may be to come
  std::string node;
};

class ClaimUsers {
 public:
  void add(const kube::Key& claim, ClaimUser user) { users_[claim].push_back(std::move(user)); }
  // A volume that one node may use at a time stays where it is used.
  void keep_to_users(const kube::Key& claim, std::set<sched::NodeId>& nodes) const;
  // Why a pod that is to come must wait for the claim, which is for one pod alone.
  VolumeProblem problem_of(const kube::Key& claim,
                           const std::function<bool(const std::string& pod)>& is_its_own) const;

 private:
  std::map<kube::Key, std::vector<ClaimUser>> users_;
};

}  // namespace rubato::control
