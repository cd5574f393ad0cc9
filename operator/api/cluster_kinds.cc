// Schemas of the three cluster-scoped kinds.
#include "operator/api/scheduling_policy.h"
#include "operator/api/schema_builder.h"
#include "operator/api/throughput_profile.h"
#include "operator/api/training_queue.h"
#include "scheduler/policy/registry.h"

#include <fmt/format.h>

namespace rubato::api {
namespace {

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const sched::Descriptor& policy : sched::all_policies()) names.push_back(policy.name);
  return names;
}

std::string policies_text() {
  std::string text = "Whom to serve first (docs/policies.md).";
  for (const sched::Descriptor& policy : sched::all_policies())
    text += fmt::format(" `{}`: {}.", policy.name, policy.about);
  return text;
}

std::string parameters_text() {
  std::string text =
      fmt::format("Numbers by name. Of all policies: {}.", sched::kCommonParametersText);
  for (const sched::Descriptor& policy : sched::all_policies()) {
    for (const sched::Parameter& p : policy.parameters)
      text += fmt::format(" Of `{}`: `{}` ({:g} to {:g}{}; {:g}).", policy.name, p.name, p.least,
                          p.most, p.unit.empty() ? "" : " " + p.unit, p.standard);
  }
  return text + " An unknown one is refused, and the condition Active says so.";
}

}  // namespace

const ObjectSchema& QueueQuota::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<QueueQuota> s("QueueQuota", "Guarantee and limit for one GPU type.");
    s.field("gpuType", &QueueQuota::gpu_type,
            "Value of nvidia.com/gpu.product; `*`: all types together.")
        .required()
        .length(1, 63);
    s.field(
         "guaranteed", &QueueQuota::guaranteed,
         "GPUs that the queue can always get: its jobs come first up to here, nobody takes these "
         "from them, and what others have borrowed of it is taken back.")
        .defaulted()
        .at_least(0)
        .at_most(1e6);
    s.field("limit", &QueueQuota::limit, "GPUs that it never exceeds; unset: no limit.")
        .at_least(0)
        .at_most(1e6);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& NamespaceLimit::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<NamespaceLimit> s("NamespaceLimit", "Limit of each namespace for one GPU type.");
    s.field("gpuType", &NamespaceLimit::gpu_type,
            "Value of nvidia.com/gpu.product; `*`: all types together.")
        .required()
        .length(1, 63);
    s.field("limit", &NamespaceLimit::limit,
            "GPUs that the jobs of one namespace never exceed in this queue.")
        .required()
        .at_least(0)
        .at_most(1e6);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& QueueCell::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<QueueCell> s("QueueCell", "Whole nodes or topology domains, guaranteed.");
    s.field("gpuType", &QueueCell::gpu_type, "Value of nvidia.com/gpu.product.")
        .required()
        .length(1, 63);
    s.field("level", &QueueCell::level, "`node`, or the name of a topology level.")
        .required()
        .length(1, 63);
    s.field("count", &QueueCell::count, "How many.").required().at_least(1).at_most(100000);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TrainingQueueSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TrainingQueueSpec> s("TrainingQueueSpec", "What the queue may use.");
    s.field("weight", &TrainingQueueSpec::weight,
            "Its part of what is left beyond the guarantees, where parameters.queueWeights of the "
            "SchedulingPolicy is 1, and under drf. Else it does not count; the condition Enforced "
            "says so.")
        .defaulted()
        .more_than(0)
        .at_most(1e6);
    s.field(
         "parent", &TrainingQueueSpec::parent,
         "Queue that this one is a part of; unset: none. What the parent may hold its parts hold "
         "together, and what it is guaranteed they share, beside guarantees of their own. A "
         "parent that does not exist counts for nothing; the condition Enforced says so.")
        .length(0, 63);
    s.field(
         "borrowing", &TrainingQueueSpec::borrowing,
         "Whether it may hold more than it is guaranteed, of what others leave idle, until a queue "
         "inside its guarantee wants it back.")
        .defaulted();
    s.field("namespaces", &TrainingQueueSpec::namespaces,
            "Namespaces whose jobs may use it; empty: all. A job of another one waits "
            "(QueueForbidden); one that has GPUs already keeps them.")
        .entries(0, 1024)
        .each_length(1, 63);
    s.field("preemption", &TrainingQueueSpec::preemption,
            "Whom its jobs may stop whose priority is lower: nobody (`never`), jobs of this queue "
            "(`withinQueue`), or of every queue (`anyQueue`), though never what another queue is "
            "guaranteed. What is lent of this queue's guarantee is taken back in any case.")
        .defaulted();
    s.field("quotas", &TrainingQueueSpec::quotas, "Guarantees and limits, one per GPU type.")
        .entries(0, 64)
        .keyed_by({"gpuType"});
    s.field("limitsPerNamespace", &TrainingQueueSpec::limits_per_namespace,
            "What the jobs of each namespace may hold of this queue, one per GPU type; empty: as "
            "much as the queue. A job that it keeps waiting is told so, with the queue named "
            "QUEUE/NAMESPACE (QueueLimit). Not beside cells.")
        .entries(0, 64)
        .keyed_by({"gpuType"});
    s.field("cells", &TrainingQueueSpec::cells,
            "Whole nodes and topology domains that its jobs can always get, as if they were a "
            "cluster of their own (docs/cells.md). Where they cannot be had beside those of older "
            "queues, the condition Enforced says so.")
        .entries(0, 64);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& QueueUsage::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<QueueUsage> s("QueueUsage", "GPUs held of one type.");
    s.field("gpuType", &QueueUsage::gpu_type, "The type.").required();
    s.field("gpus", &QueueUsage::gpus, "How many.").required();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TrainingQueueStatus::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TrainingQueueStatus> s("TrainingQueueStatus", "What the queue holds.");
    s.field("pending", &TrainingQueueStatus::pending, "Jobs without GPUs.");
    s.field("running", &TrainingQueueStatus::running, "Jobs with GPUs.");
    s.field("gpus", &TrainingQueueStatus::gpus, "GPUs held.");
    s.field("share", &TrainingQueueStatus::share,
            "GPUs that it is guaranteed by its weight, where weights count (docs/queues.md).");
    s.field("usage", &TrainingQueueStatus::usage, "GPUs held, by type.");
    s.field("installation", &TrainingQueueStatus::installation,
            "Whose jobs are counted, where several installations see the queue.");
    s.field("conditions", &TrainingQueueStatus::conditions, "All aspects of its state.")
        .keyed_by({"type"});
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& RescaleBudget::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<RescaleBudget> s("RescaleBudget", "How much a round may disturb running jobs.");
    s.field("perJobSeconds", &RescaleBudget::per_job_seconds,
            "Least time between two growths of one running job. What another job's minimum, a lost "
            "pod or a changed spec demands is never held back.")
        .defaulted()
        .at_least(0)
        .at_most(86400);
    s.field("jobsPerRound", &RescaleBudget::jobs_per_round,
            "Most running jobs that one round grows.")
        .defaulted()
        .at_least(1)
        .at_most(100000);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& SchedulingPolicySpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<SchedulingPolicySpec> s("SchedulingPolicySpec", "How the scheduler decides.");
    s.field("policy", &SchedulingPolicySpec::policy, policies_text())
        .defaulted()
        .choices(policy_names());
    s.field("parameters", &SchedulingPolicySpec::parameters, parameters_text()).entries(0, 64);
    s.field("roundSeconds", &SchedulingPolicySpec::round_seconds,
            "Longest time between rounds; a change starts one at once, "
            "and up to two seconds later while pods leave.")
        .defaulted()
        .at_least(1)
        .at_most(3600);
    s.field("gangStartSeconds", &SchedulingPolicySpec::gang_start_seconds,
            "All pods of a new gang must run within, else it gives its GPUs back and queues again; "
            "a pod that comes later, else it alone gives them back.")
        .defaulted()
        .at_least(1)
        .at_most(86400);
    s.field("rescaleBudget", &SchedulingPolicySpec::rescale_budget, "Limits of disturbance.")
        .defaulted();
    s.field(
         "missingMechanism", &SchedulingPolicySpec::missing_mechanism,
         "What holds of a policy that needs what workers cannot do (docs/policies.md says which; "
         "two jobs on one GPU): it is refused, and what was in force stays (`Refuse`), or it "
         "runs without, as the condition Active says (`Degrade`).")
        .defaulted();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& SchedulingPolicyStatus::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<SchedulingPolicyStatus> s("SchedulingPolicyStatus", "What is in force.");
    s.field("active", &SchedulingPolicyStatus::active, "The policy that the leader uses.");
    s.field("inForce", &SchedulingPolicyStatus::in_force,
            "The spec that is in force: as it was loaded last, where the present one is refused. "
            "Absent where the operator's flags are in force.");
    s.field("observedGeneration", &SchedulingPolicyStatus::observed_generation,
            "The metadata.generation that it has loaded.");
    s.field("installation", &SchedulingPolicyStatus::installation,
            "Whose leader that is, where several installations see the policy.");
    s.field("conditions", &SchedulingPolicyStatus::conditions, "All aspects of its state.")
        .keyed_by({"type"});
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ThroughputPoint::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ThroughputPoint> s("ThroughputPoint", "One measurement.");
    s.field("gpuType", &ThroughputPoint::gpu_type, "Value of nvidia.com/gpu.product.")
        .required()
        .length(1, 63);
    s.field("gpus", &ThroughputPoint::gpus, "How many.").required().at_least(1).at_most(100000);
    s.field("tokensPerSecond", &ThroughputPoint::tokens_per_second, "Mean speed.")
        .required()
        .at_least(0)
        .at_most(1e15);
    s.field("measured", &ThroughputPoint::measured, "When; of two points the later one counts.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ThroughputProfileSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ThroughputProfileSpec> s("ThroughputProfileSpec",
                                           "Measured speed of one kind of job.");
    s.field("model", &ThroughputProfileSpec::model,
            "The kind: a digest of model, batch and containers, as it is in the jobs' "
            "status.throughputProfile.")
        .required()
        .length(1, 253);
    s.field("description", &ThroughputProfileSpec::description, "The kind in words.")
        .length(0, 256);
    s.field("points", &ThroughputProfileSpec::points, "The measurements.")
        .entries(0, kThroughputPointsMost)
        .keyed_by({"gpuType", "gpus"});
    return s.build();
  }();
  return kSchema;
}

Result<TrainingQueue> decode_training_queue(const json::Value& object) {
  TrainingQueue queue;
  queue.meta = decode_meta(object);
  TRY(queue.spec, decode<TrainingQueueSpec>(object["spec"], "spec"));
  TRY(queue.status, decode<TrainingQueueStatus>(object["status"], "status"));
  return queue;
}

Result<SchedulingPolicy> decode_scheduling_policy(const json::Value& object) {
  SchedulingPolicy policy;
  policy.meta = decode_meta(object);
  TRY(policy.spec, decode<SchedulingPolicySpec>(object["spec"], "spec"));
  TRY(policy.status, decode<SchedulingPolicyStatus>(object["status"], "status"));
  return policy;
}

Result<ThroughputProfile> decode_throughput_profile(const json::Value& object) {
  ThroughputProfile profile;
  profile.meta = decode_meta(object);
  TRY(profile.spec, decode<ThroughputProfileSpec>(object["spec"], "spec"));
  return profile;
}

}  // namespace rubato::api
