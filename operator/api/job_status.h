// TrainingJobStatus: what the operator says about a job. Several controllers write it, each its own
// part, always by patch: `allocation` by the scheduler loop (JSON patch that tests its epoch),
// `membership` by the coordinator (tests generation and leader), the rest by the job controller.
// Plain values.
#pragma once

#include "common/clock.h"
#include "operator/api/conditions.h"
#include "operator/api/schema.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

// Preformatted for the columns of `kubectl get`; the job controller fills it in.
struct Display {
  std::string gpus;               // "12/2-64": now / min-max
  std::string type;               // "NVIDIA-H100-80GB-HBM3", or "mixed"
  std::string progress;           // "41%"
  std::string loss;               // "3.18"
  std::string tokens_per_second;  // "412k"
  std::string goodput;            // "0.93"

  static const ObjectSchema& schema();
  bool operator==(const Display&) const = default;
};

// One pod of the durable decision. Its name is pod_name(job, ordinal).
struct AllocatedPod {
  std::string name;
  std::int64_t ordinal = 0;
  std::string node;
  std::string gpu_type;
  std::int32_t gpus = 0;
  std::string cell;  // level of the cell of its queue that it is in; "": in none

  static const ObjectSchema& schema();
  bool operator==(const AllocatedPod&) const = default;
};

// The durable decision: which pods, on which nodes. Replaced whole.
struct Allocation {
  std::int64_t epoch = 0;                         // grows with every decision
  std::optional<std::int64_t> leader_transition;  // Lease.spec.leaseTransitions of the writer
  std::int64_t next_ordinal = 0;                  // pod ordinals are never reused
  std::int32_t gpus = 0;
  std::vector<AllocatedPod> pods;
  std::optional<WallTime> since;
  std::optional<WallTime> running_since;  // there were no pods before
  std::string reason;                     // why this and not another
  std::optional<bool> preempted;          // its GPUs were taken for another job
  // Pods that have left it, of the job's life: that failed of themselves, and that others ended.
  std::optional<std::int64_t> failed_pods;
  std::optional<std::int64_t> lost_pods;

  static const ObjectSchema& schema();
  bool operator==(const Allocation&) const = default;
};

struct MembershipMember {
  std::string pod;
  std::string pod_uid;
  std::string node;
  std::int32_t slot = 0;         // which worker of the pod
  std::int64_t incarnation = 0;  // how often it was started
  std::string gpu_type;

  static const ObjectSchema& schema();
  bool operator==(const MembershipMember&) const = default;
};

// The coordinator's record, written by compare-and-swap.
struct Membership {
  std::int64_t generation = 0;
  std::int64_t leader = 0;  // leaseTransitions of the operator that may write
  std::string phase;        // rubato::coordinator names them
  std::vector<MembershipMember> members;
  std::vector<MembershipMember> previous;  // of the generation before, while phase is Switching
  std::string packed;                      // both of a job of more than 64: packed_members.h
  std::int64_t size = 0;                   // how many members
  std::int64_t seq = 0;                    // writes within this generation
  std::int64_t step = 0;                   // last committed step known when written
  std::string fingerprint;                 // of numerics, hex; set by the first generation
  std::optional<std::int64_t> stop_steps;  // training.stop.steps of this generation
  std::optional<std::int64_t> ended_at;    // the step after which its script ended the job
  std::optional<std::int64_t> rescales;    // of the job's life, this generation's included
  std::optional<std::int64_t> recomputed_steps;  // of the job's life
  std::optional<std::int64_t> failures;          // of workers, of the job's own making; of its life
  std::map<std::string, std::int64_t> crashes;   // those of today's pods among them, by uid

  static const ObjectSchema& schema();
  bool operator==(const Membership&) const = default;
};

// What the job's Secret holds, for who renews it.
struct Credentials {
  WallTime not_after{};  // of the job's certificate
  std::string trust;     // digest of the authorities and the key that it was made by

  static const ObjectSchema& schema();
  bool operator==(const Credentials&) const = default;
};

// The PriorityClass that a pod of the job was tried with, and what it said then. As of a pod, it
// stays what it was for as long as the job holds GPUs, whatever becomes of the class.
struct JobPriority {
  std::string class_name;  // spec.priorityClassName; "": the cluster's default
  std::int64_t value = 0;
  bool preempts = true;  // preemptionPolicy is not Never

  static const ObjectSchema& schema();
  bool operator==(const JobPriority&) const = default;
};

struct Progress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  std::int32_t percentage = 0;
  std::optional<std::int64_t> estimated_remaining_seconds;
  std::int64_t checkpoint_step = 0;   // newest complete checkpoint; 0: none
  std::int64_t recomputed_steps = 0;  // steps done again after going back to a checkpoint

  static const ObjectSchema& schema();
  bool operator==(const Progress&) const = default;
};

struct TypePerformance {
  std::string gpu_type;
  std::int32_t gpus = 0;
  double tokens_per_second = 0;

  static const ObjectSchema& schema();
  bool operator==(const TypePerformance&) const = default;
};

struct TypeGpuSeconds {
  std::string gpu_type;
  double seconds = 0;

  static const ObjectSchema& schema();
  bool operator==(const TypeGpuSeconds&) const = default;
};

struct Performance {
  double tokens_per_second = 0;
  std::optional<double> goodput;  // usefulGPUSeconds / (usefulGPUSeconds + all lost), 0..1
  std::optional<double> mfu;      // model FLOP utilisation, 0..1; absent: the peak is not known
  std::optional<double> gradient_noise_scale;  // tokens (worker/step/noise_scale.h)
  std::vector<TypePerformance> by_type;
  // From when pods were made until they took part: at the last start, and of the last that joined.
  std::optional<double> start_seconds;
  std::optional<double> join_seconds;
  std::optional<std::int64_t> prepared_generation;  // the newest whose pods count there
  std::optional<double> stall_seconds;  // its workers waited so long when some joined or left last

  static const ObjectSchema& schema();
  bool operator==(const Performance&) const = default;
};

struct Rescale {
  std::string reason;
  std::int64_t generation = 0;  // of the membership that it led to
  std::int32_t from = 0;
  std::int32_t to = 0;
  double stall_seconds = 0;  // running workers waited so long
  std::optional<WallTime> time;

  static const ObjectSchema& schema();
  bool operator==(const Rescale&) const = default;
};

struct Rescales {
  std::int64_t count = 0;
  std::optional<Rescale> last;

  static const ObjectSchema& schema();
  bool operator==(const Rescales&) const = default;
};

// operator/coordinator/gpu_time.h defines each; sums over the job's life.
struct LostGpuSeconds {
  double queue = 0;
  double rescale = 0;
  double failure = 0;
  double checkpoint = 0;
  std::optional<double> straggling;  // builds before did not count it

  static const ObjectSchema& schema();
  bool operator==(const LostGpuSeconds&) const = default;
};

struct Restarts {
  std::int32_t count = 0;           // charged to faultTolerance.maxRestarts
  std::int32_t infrastructure = 0;  // not charged

  static const ObjectSchema& schema();
  bool operator==(const Restarts&) const = default;
};

// A node where a pod of the job was of no use: it gets no other there for a while, each time
// longer.
struct AvoidedNode {
  std::string node;
  std::string reason;             // "PodGivenUp", "VolumeRefused", or what its worker said
  std::string message;            // with both sides, of the last pod
  std::int32_t times = 0;         // in a row
  std::optional<WallTime> since;  // of the first in the row for this reason
  std::optional<WallTime> until;

  static const ObjectSchema& schema();
  bool operator==(const AvoidedNode&) const = default;
};
constexpr std::size_t kAvoidedNodesMost = 128;
constexpr std::size_t kAvoidedMessageMost = 512;  // characters

struct TrainingJobStatus {
  std::string state;         // state_of(conditions)
  std::string reason;        // of the condition that gave the state
  std::string installation;  // whose job it is: control/installation.h
  std::optional<std::int64_t> observed_generation;
  std::optional<Display> display;
  std::vector<Condition> conditions;
  std::optional<Allocation> allocation;
  std::optional<Membership> membership;
  std::optional<Credentials> credentials;
  std::optional<JobPriority> priority;  // absent: not tried yet, or by a build that kept none
  // Where the decay of the learning rate ends: schedule.decaySteps, or stop.steps as it was when
  // the job was first seen. Fixed from then on, for the curve is part of the numerics.
  std::optional<std::int64_t> decay_steps;
  std::optional<Progress> progress;
  std::optional<Performance> performance;
  std::string throughput_profile;  // the kind of the job: ThroughputProfileSpec::model
  std::optional<Rescales> rescales;
  std::optional<double> useful_gpu_seconds;
  std::optional<LostGpuSeconds> lost_gpu_seconds;
  std::vector<TypeGpuSeconds> gpu_seconds_by_type;
  std::optional<Restarts> restarts;
  std::optional<WallTime> expected_start_time;
  std::optional<WallTime> start_time;
  std::optional<WallTime> completion_time;
  std::optional<WallTime> parked_since;
  std::vector<AvoidedNode> avoided_nodes;
  std::int32_t replicas = 0;  // GPUs held now, for the scale subresource
  std::string selector;       // of the worker pods, for the scale subresource

  static const ObjectSchema& schema();
  bool operator==(const TrainingJobStatus&) const = default;
};

}  // namespace rubato::api
