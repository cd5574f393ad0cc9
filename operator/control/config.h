// What an operator process is told at its start. Nothing here changes while it runs; what a
// SchedulingPolicy may say instead is in policy.h.
#pragma once

#include "common/clock.h"
#include "operator/control/topology.h"

#include <string>
#include <vector>

namespace rubato::control {

struct Config {
  // The extended resource that is one GPU: "nvidia.com/gpu", or a stand-in on machines without.
  std::string gpu_resource = "nvidia.com/gpu";
  std::string gpu_type_label = "nvidia.com/gpu.product";
  std::vector<TopologyLevel> topology = {{"zone", "topology.kubernetes.io/zone"}};  // widest first
  std::string scheduler_name = "rubato";
  // Where agents dial: "host:port" of every replica, or the Service's address.
  std::vector<std::string> coordinator_addresses;
  std::string secret_mount = "/var/run/rubato/job";
  std::string agent_command = "rubato-agent";
  int worker_metrics_port = 0;  // where agents show their metrics, in worker pods; 0: nowhere
  // What worker pods get where their template says nothing of it; empty: nothing.
  std::string worker_runtime_class;  // spec.runtimeClassName
  std::string worker_shared_memory;  // size of a memory volume at /dev/shm, a quantity

  // Relative gain in speed below which a job is not grown; below zero: it takes what is free, even
  // where measured speed falls (slots that share one machine's cores).
  double min_gain = 0.01;
  Duration round_interval = 1s;  // a scheduling round at least this often; events start one at once
  Duration round_spacing = 50ms;  // and not more often than this
  Duration room_patience = 2s;    // a round waits that long for pods that leave at the same time
  Duration gang_start = 300s;     // pods of a first generation must all be ready within
  Duration requeue_delay = 30s;   // after a gang start timed out
  Duration progress_period = 1s;  // see progress_period() in memory.h
  // A node whose Lease was not renewed for this long gets no new pod; 0: the Lease's own duration.
  Duration node_lease_limit = 0s;
  Duration teardown_extra = 30s;  // beyond the grace period, then the finalizer goes anyway

  // Jobs leave a node so long before its maintenance (leaving_nodes.h),
  Duration maintenance_lead = 300s;
  // and at once where it has a taint with one of these keys, of whatever effect. They say that the
  // node will end:
  std::vector<std::string> leaving_taints = {
      // kubernetes/autoscaler, utils/taints: before it drains and removes the node.
      "ToBeDeletedByClusterAutoscaler",
      // karpenter.sh, disruption: expired, drifted, consolidated, interrupted or deleted.
      "karpenter.sh/disrupted",
      // aws/aws-node-termination-handler, pkg/node: a spot interruption, a scheduled event of EC2,
      // a scale-in (with taintNode, or TAINT_NODE).
      "aws-node-termination-handler/spot-itn", "aws-node-termination-handler/scheduled-maintenance",
      "aws-node-termination-handler/asg-lifecycle-termination",
      // GKE, k8s-node-termination-handler: on nodes with GPUs, an hour before.
      "cloud.google.com/impending-node-termination",
      // AKS, node auto-drain: a spot node is preempted, a machine redeployed or terminated.
      "remediator.kubernetes.azure.com/unschedulable"};
};

}  // namespace rubato::control
