// Which ends of pods are the job's own failures, and what of that an allocation keeps. Pure.
#pragma once

#include "kube/objects/pod.h"
#include "operator/api/training_job.h"

#include <map>
#include <string>

namespace rubato::control {

// The pod failed, and no job could help it: the kubelet refused the pod, whatever for, the node was
// lost, drained or rebooted (a table of reasons), somebody sent its processes SIGTERM or SIGKILL
// from outside. A container that ran out of its own memory is the job's doing.
bool is_lost_to_infrastructure(const kube::Pod& pod);
// It failed, and that is charged to faultTolerance.maxRestarts.
bool failed_of_itself(const kube::Pod& pod);
// How such a one failed, for people: which container, its exit code, the kubelet's words.
std::string describe_failure(const kube::Pod& pod);
// The same of any pod that has ended.
std::string describe_end(const kube::Pod& pod);

// Counts those of the job's allocated pods that `next` has no more: each leaves an allocation once,
// and the count stands in the same write, so it is exact over leaders, requeues and resumes.
// `pods`: the job's, by name; one that is not there is gone. Pods that run leave by a decision of
// ours and count as neither.
void count_left(const api::TrainingJob& job, const std::map<std::string, const kube::Pod*>& pods,
                api::Allocation& next);

}  // namespace rubato::control
