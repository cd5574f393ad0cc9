// Which nodes a pod may go to. Pure.
#pragma once

#include "common/clock.h"
#include "kube/objects/node.h"
#include "kube/objects/pod.h"
#include "operator/control/config.h"
#include "operator/control/memory.h"

#include <map>
#include <string>

namespace rubato::control {

// By the pod's node selector, required node affinity and tolerations; taints that pressure puts on
// a node count.
bool admits(const kube::Pod& pod, const kube::Node& node);

// "" while the node shows signs of life, else what is missing. `renewal`: of its Lease; null: it
// has none.
std::string why_silent(const kube::Node& node, const Renewal* renewal,
                       const std::map<std::string, MonoTime>& suspects, MonoTime now,
                       const Config& config);

// "" when a pod may be bound to the node now, else why not.
std::string why_unschedulable(const kube::Node& node, const Renewal* renewal,
                              const std::map<std::string, MonoTime>& suspects, MonoTime now,
                              const Config& config);

}  // namespace rubato::control
