// The worker pod of a job: its template plus what the agent needs. Pure; the same input gives the
// same pod, so a second create is answered 409 and means "already done".
#pragma once

#include "common/json.h"
#include "kube/objects/pod.h"
#include "operator/api/training_job.h"
#include "operator/control/config.h"

namespace rubato::control {

// Named after the job's uid, so that a job with a reused name never meets an old Secret.
std::string job_secret_name(const api::TrainingJob& job);

// A complete Pod manifest, unbound. The container named "worker" (else the first) runs the agent
// unless it has a command of its own. Environment and volumes that the template sets under our
// names are replaced; what the configuration says of all worker pods is filled in where it is
// silent. Its priority class is the one that was tried (status.priority), if any: the spec may name
// another since. Its security context is what pod_security.h says. The template is null or one that
// check_pod_template (api/pod_template.h) lets pass, as in every job that was decoded.
json::Value worker_pod(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                       const Config& config);

// A pod of the spec as it is now: what its pods ask for, and whether they may be made.
json::Value sample_pod(const api::TrainingJob& job, const Config& config);

// Of the container that runs the agent, as the template names it.
std::string worker_image(const api::TrainingJob& job);

// What keeps a container of a pod that has not run from starting, in the kubelet's own word
// ("ImagePullBackOff", "ErrImageNeverPull" …); empty while it starts as usual.
std::string start_problem(const kube::Pod& pod);

}  // namespace rubato::control
