// What a worker pod asks of the kernel: nothing. Fills in what Pod Security "restricted" wants,
// field by field, wherever the job's template is silent; what the template says is never changed.
// Pure.
//
//   pod         runs as a user that is not root (the image says which); volumes belong to group
//               kWorkerGroup, so that it can read its Secret and write its checkpoints; the
//               runtime's seccomp profile
//   containers  no privilege escalation, no capabilities
//   the worker  a read-only root file system, with an emptyDir at /tmp
//
// A template with a root user, a privileged container or added capabilities is left as it is there.
#pragma once

#include "common/json.h"

#include <cstddef>

namespace rubato::control {

constexpr int kWorkerGroup = 65532;  // also user and group of our images

// `worker`: which of the containers runs the agent. The members that are written into are of their
// type, as api/pod_template.h asks of each template.
void apply_pod_security(json::Value& pod_spec, std::size_t worker);

}  // namespace rubato::control
