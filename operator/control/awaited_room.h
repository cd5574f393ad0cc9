// AwaitedRoom: pods that leave together, for their job has ended, shrinks or is preempted, are gone
// one after the other, most within a second. A round in between would deal their GPUs out in small
// parts: jobs start smaller than they should, and the pause between two growths keeps them so. A
// round waits for them, once for each pod and never longer than `patience`. One task. O(pods), and
// one view of each job.
#pragma once

#include "operator/control/cluster_view.h"

#include <optional>
#include <set>
#include <string>

namespace rubato::control {

class AwaitedRoom {
 public:
  // Until when a round has to wait, unless a pod's end is heard of before; none: it is due now.
  std::optional<MonoTime> wait_until(const World& world, Duration patience);

 private:
  std::optional<MonoTime> since_;     // a round waits
  std::set<std::string> waited_for_;  // uids of pods that took longer and have not left yet
};

}  // namespace rubato::control
