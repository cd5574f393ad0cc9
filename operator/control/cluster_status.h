// Writes the status of TrainingQueues and SchedulingPolicies, after a round. What differs from the
// caches is patched; a write that fails is made again in a round of kUnwrittenFor later. Lives on
// the scheduler's task. Where several installations see an object, the first that wrote its status
// goes on alone, until the label rubato.dev/installation says whose it is.
#pragma once

#include "kube/client.h"
#include "operator/control/installation.h"
#include "operator/control/policy.h"
#include "operator/control/queue_status.h"
#include "operator/control/status_diff.h"
#include "scheduler/snapshot/snapshot.h"

#include <map>
#include <string>

namespace rubato::control {

// `plan`: what came of the queues in the world as it was decided on.
void write_queues(kube::Client& client, StatusDiff& diff, const World& world,
                  const sched::Snapshot& decided_on, const sched::Plan& plan,
                  const Installation& installation);
// `refused`: why the object named "default" was not loaded; empty when it was.
void write_policies(kube::Client& client, StatusDiff& diff, const World& world,
                    const Policy& in_force, const std::string& refused,
                    const Installation& installation);

}  // namespace rubato::control
