// UnreleasedRoom: what one job lets go another may get in the same plan, GPUs of a node as well as
// a queue's part of a limit. Where an action that lets go was not done for sure, whoever may need
// what it would have let go waits for the next plan. Pure.
#pragma once

#include "scheduler/plan.h"

#include <map>
#include <set>
#include <string>

namespace rubato::control {

class UnreleasedRoom {
 public:
  explicit UnreleasedRoom(const sched::ClusterState& decided_on);

  // The action was not done, or it is not known whether it was: its job may have all that it had.
  void note(const sched::Action& action);
  bool is_needed_by(const sched::Action& action) const;

 private:
  const sched::Job* find(const sched::JobId& id) const;

  const sched::ClusterState& state_;
  std::map<sched::JobId, const sched::Job*> jobs_;
  std::set<sched::NodeId> nodes_;
  std::set<std::string> queues_;  // those alone that have a limit
};

}  // namespace rubato::control
