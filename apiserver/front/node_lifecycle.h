// NodeLifecycle: the two things of a kube-controller-manager without which nodes cannot die here.
// A node whose Lease was not renewed for its duration is marked Ready=Unknown; a pod bound to a
// node that no longer exists is removed. Everything else of that program is the operator's or
// nobody's.
#pragma once

#include "common/clock.h"
#include "kube/client.h"

namespace rubato::apiserver {

constexpr auto kNodeLifecyclePeriod = std::chrono::seconds(1);

// One look at all nodes and pods; repeatable. The number of objects it changed.
Result<int> tend_nodes(kube::Client& client, const Clock& clock);

}  // namespace rubato::apiserver
