#include "operator/api/job_status.h"

#include "operator/api/schema_builder.h"
#include "operator/api/training_job.h"

namespace rubato::api {

const ObjectSchema& Display::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Display> s("Display", "Preformatted for the columns of kubectl get.");
    s.field("gpus", &Display::gpus, "Now / min-max.");
    s.field("type", &Display::type, "GPU type, or `mixed`.");
    s.field("progress", &Display::progress, "Part of the steps that is done.");
    s.field("loss", &Display::loss, "Of the last step.");
    s.field("tokensPerSecond", &Display::tokens_per_second, "Present speed.");
    s.field("goodput", &Display::goodput, "Useful part of the GPU time held.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& AllocatedPod::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<AllocatedPod> s("AllocatedPod", "A pod of the decision.");
    s.field("name", &AllocatedPod::name, "Its name.").required();
    s.field("ordinal", &AllocatedPod::ordinal, "Its number; never used again.").required();
    s.field("node", &AllocatedPod::node, "Where it is bound.").required();
    s.field("gpuType", &AllocatedPod::gpu_type, "GPU type of the node.");
    s.field("gpus", &AllocatedPod::gpus, "How many it holds.").required();
    s.field("cell", &AllocatedPod::cell,
            "Level of the cell of its queue that it is in; unset: in none.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Allocation::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Allocation> s("Allocation", "The scheduler's durable decision.");
    s.field("epoch", &Allocation::epoch, "Grows with every decision.").required();
    s.field("leaderTransition", &Allocation::leader_transition,
            "leaseTransitions of the operator that wrote it.");
    s.field("nextOrdinal", &Allocation::next_ordinal, "First ordinal not yet used.").required();
    s.field("gpus", &Allocation::gpus, "Sum over the pods.").required();
    s.field("pods", &Allocation::pods, "The pods that should exist.").required();
    s.field("since", &Allocation::since, "When it was decided.");
    s.field("runningSince", &Allocation::running_since,
            "When it was last given pods after it had none: minRunSeconds count from then.");
    s.field("reason", &Allocation::reason, "Why this and not another.");
    s.field("preempted", &Allocation::preempted, "Its GPUs were taken for another job.");
    s.field(
        "failedPods", &Allocation::failed_pods,
        "Pods that failed of themselves and have left, of the job's life; against maxRestarts.");
    s.field("lostPods", &Allocation::lost_pods,
            "Pods that nodes, kubelets or people ended and that have left, of the job's life.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& MembershipMember::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<MembershipMember> s("MembershipMember", "A worker of the generation.");
    s.field("pod", &MembershipMember::pod, "Its pod.").required();
    s.field("podUID", &MembershipMember::pod_uid, "The pod's uid.").required();
    s.field("node", &MembershipMember::node, "Its node.").required();
    s.field("slot", &MembershipMember::slot, "Which worker of the pod.").required();
    s.field("incarnation", &MembershipMember::incarnation, "How often it was started.").required();
    s.field("gpuType", &MembershipMember::gpu_type, "GPU type of the node.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Membership::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Membership> s("Membership",
                                "Who trains together; the coordinator's record, written by "
                                "compare-and-swap.");
    s.field("generation", &Membership::generation, "Grows with every change.").required();
    s.field("leader", &Membership::leader, "leaseTransitions of the operator that may write.")
        .required();
    s.field("phase", &Membership::phase, "How far the change is.").required();
    s.field("members", &Membership::members,
            "The workers, in order of rank; empty where they are packed.")
        .required();
    s.field("previous", &Membership::previous,
            "The workers of the generation before, while a planned change is under way.");
    s.field("packed", &Membership::packed,
            "Both lists of a job of more than 64 workers, for programs: base64 of zlib of JSON.");
    s.field("size", &Membership::size, "How many workers.");
    s.field("seq", &Membership::seq, "Writes within the generation.").required();
    s.field("step", &Membership::step, "Last committed step known at the time.").required();
    s.field("fingerprint", &Membership::fingerprint, "Of the numerics; joiners must equal it.");
    s.field("stopSteps", &Membership::stop_steps, "training.stop.steps of the generation.");
    s.field("endedAt", &Membership::ended_at,
            "The step after which the script ended the job, before training.stop.steps.");
    s.field("rescales", &Membership::rescales,
            "Rescales of the job's life, the one that led to this generation included.");
    s.field("recomputedSteps", &Membership::recomputed_steps,
            "Steps done again after a return to a checkpoint, of the job's life.");
    s.field("failures", &Membership::failures,
            "Workers that ended by themselves, of the job's life; against maxRestarts.");
    s.field("crashes", &Membership::crashes,
            "Of them, those that the agents of today's pods have counted, by the pod's uid.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Progress::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Progress> s("Progress", "How far training is.");
    s.field("step", &Progress::step, "Last committed step.");
    s.field("steps", &Progress::steps, "Steps in all.");
    s.field("tokens", &Progress::tokens, "Tokens learned from.");
    s.field("loss", &Progress::loss, "Mean per token at the step.");
    s.field("validationLoss", &Progress::validation_loss, "At the last evaluation.");
    s.field("percentage", &Progress::percentage, "100 × step / steps.");
    s.field("estimatedRemainingSeconds", &Progress::estimated_remaining_seconds,
            "At the present speed.");
    s.field("checkpointStep", &Progress::checkpoint_step, "Newest complete checkpoint; 0: none.");
    s.field("recomputedSteps", &Progress::recomputed_steps,
            "Steps done again after a return to a checkpoint.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TypePerformance::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TypePerformance> s("TypePerformance", "Measured speed on one GPU type.");
    s.field("gpuType", &TypePerformance::gpu_type, "The type.").required();
    s.field("gpus", &TypePerformance::gpus, "How many of it.").required();
    s.field("tokensPerSecond", &TypePerformance::tokens_per_second, "Of all of them.").required();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TypeGpuSeconds::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TypeGpuSeconds> s("TypeGpuSeconds", "GPU time held of one GPU type.");
    s.field("gpuType", &TypeGpuSeconds::gpu_type, "The type.").required();
    s.field("seconds", &TypeGpuSeconds::seconds, "GPUs of it, times seconds.").required();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Performance::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Performance> s("Performance", "How fast, and how well used.");
    s.field("tokensPerSecond", &Performance::tokens_per_second, "Present speed.");
    s.field(
        "goodput", &Performance::goodput,
        "Useful part of the GPU time held so far, 0 to 1: usefulGPUSeconds / (usefulGPUSeconds + "
        "lostGPUSeconds).");
    s.field("mfu", &Performance::mfu,
            "Model FLOP utilisation, 0 to 1; absent where the GPU type's peak is not known.");
    s.field("gradientNoiseScale", &Performance::gradient_noise_scale,
            "Gradient noise scale in tokens (samples, of a script), measured as it trains: the "
            "batch from which on a larger one saves few steps (McCandlish et al. 2018). Absent "
            "until it was measured, and where a step is one micro-batch.");
    s.field("byType", &Performance::by_type, "By GPU type.");
    s.field("startSeconds", &Performance::start_seconds,
            "From when its pods were made until they took part, at its last start.");
    s.field("joinSeconds", &Performance::join_seconds,
            "The same of the last pods that joined while it trained.");
    s.field("preparedGeneration", &Performance::prepared_generation,
            "Of the membership that the later of both led to.");
    s.field("stallSeconds", &Performance::stall_seconds,
            "How long its workers stood still when pods joined or left last, as planned.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Rescale::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Rescale> s("Rescale", "One change of the number of workers.");
    s.field("reason", &Rescale::reason, "Why.");
    s.field("generation", &Rescale::generation, "Of the membership that it led to.");
    s.field("from", &Rescale::from, "GPUs before.");
    s.field("to", &Rescale::to, "GPUs after.");
    s.field("stallSeconds", &Rescale::stall_seconds, "How long training stood still.");
    s.field("time", &Rescale::time, "When.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Rescales::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Rescales> s("Rescales", "Changes of the number of workers.");
    s.field("count", &Rescales::count,
            "How many so far; none is forgotten when another operator leads.");
    s.field("last", &Rescales::last, "The last one whose cost its leader could tell.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& LostGpuSeconds::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<LostGpuSeconds> s("LostGPUSeconds", "GPU time that trained nothing, by cause.");
    s.field("queue", &LostGpuSeconds::queue, "Pods of a gang that start, until its first step.");
    s.field("rescale", &LostGpuSeconds::rescale,
            "Planned changes: newcomers that start and pull state, leavers, the stall.");
    s.field("failure", &LostGpuSeconds::failure,
            "Losses: standing still, parked, and the work that is done again.");
    s.field("checkpoint", &LostGpuSeconds::checkpoint,
            "The checkpoint before a stop and the last one; writing while training goes on costs "
            "none.");
    s.field("straggling", &LostGpuSeconds::straggling,
            "Of each step, what workers wait for the one that computes longest.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Restarts::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Restarts> s("Restarts", "Pods and workers that were started again.");
    s.field("count", &Restarts::count,
            "Workers and pods that failed of themselves, of the job's life; against maxRestarts.");
    s.field("infrastructure", &Restarts::infrastructure,
            "Pods that were lost or ended by others, of the job's life; not charged.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& AvoidedNode::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<AvoidedNode> s("AvoidedNode", "A node where a pod of the job was of no use.");
    s.field("node", &AvoidedNode::node, "Its name.").required();
    s.field("reason", &AvoidedNode::reason,
            "`PodGivenUp`, `VolumeRefused`, or why the worker there cannot take part.")
        .required();
    s.field("message", &AvoidedNode::message, "Both sides of it, for people.")
        .length(0, kAvoidedMessageMost);
    s.field("times", &AvoidedNode::times, "How often in a row.").required();
    s.field("since", &AvoidedNode::since, "When the row began.");
    s.field("until", &AvoidedNode::until, "When the node may be tried again.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& Credentials::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<Credentials> s("Credentials", "What the job's Secret holds.");
    s.field("notAfter", &Credentials::not_after,
            "When the job's certificate ends; it is renewed in the last third of its life.")
        .required();
    s.field("trust", &Credentials::trust,
            "Digest of the authorities and the key that the Secret was made by.")
        .required();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& JobPriority::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<JobPriority> s("JobPriority", "The PriorityClass that its pods are made with.");
    s.field("className", &JobPriority::class_name,
            "Its name; unset: the cluster's default, or none.");
    s.field("value", &JobPriority::value,
            "What the class said; kept for as long as the job holds GPUs.");
    s.field("preempts", &JobPriority::preempts,
            "Whether the class preempts: its preemptionPolicy is not Never.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TrainingJobStatus::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TrainingJobStatus> s("TrainingJobStatus", "How the job stands.");
    s.field("state", &TrainingJobStatus::state, "One word, derived from the conditions.");
    s.field("reason", &TrainingJobStatus::reason, "Why it is in this state, in one word.");
    s.field("installation", &TrainingJobStatus::installation,
            "Whose job it is, where several installations run in the cluster.");
    s.field("observedGeneration", &TrainingJobStatus::observed_generation,
            "The metadata.generation that the operator has acted on.");
    s.field("display", &TrainingJobStatus::display, "For kubectl get.");
    s.field("conditions", &TrainingJobStatus::conditions, "All aspects of its state.")
        .keyed_by({"type"});
    s.field("allocation", &TrainingJobStatus::allocation, "What the scheduler decided.");
    s.field("membership", &TrainingJobStatus::membership, "Who trains together.");
    s.field("credentials", &TrainingJobStatus::credentials, "What the job's Secret holds.");
    s.field("priority", &TrainingJobStatus::priority,
            "The priority class that a pod was tried with, by which the job is scheduled.");
    s.field("decaySteps", &TrainingJobStatus::decay_steps,
            "Where the decay of the learning rate ends; fixed when the job was first seen.");
    s.field("progress", &TrainingJobStatus::progress, "How far.");
    s.field("performance", &TrainingJobStatus::performance, "How fast.");
    s.field("throughputProfile", &TrainingJobStatus::throughput_profile,
            "The kind of the job: what is measured of one job of a kind is known of all.");
    s.field("rescales", &TrainingJobStatus::rescales, "Changes of the number of workers.");
    s.field("usefulGPUSeconds", &TrainingJobStatus::useful_gpu_seconds,
            "GPU time that trained: GPUs that commit steps, times seconds.");
    s.field("lostGPUSeconds", &TrainingJobStatus::lost_gpu_seconds,
            "GPU time that trained nothing.");
    s.field("gpuSecondsByType", &TrainingJobStatus::gpu_seconds_by_type,
            "Both together, by GPU type, from when the operator began to count them.")
        .keyed_by({"gpuType"});
    s.field("restarts", &TrainingJobStatus::restarts, "Pods and workers started again.");
    s.field(
        "expectedStartTime", &TrainingJobStatus::expected_start_time,
        "While the job waits: when it is expected to have its GPUs, if all goes on as it is and "
        "nobody comes. Absent where that is not known.");
    s.field("startTime", &TrainingJobStatus::start_time, "First step, or first after resume.");
    s.field("completionTime", &TrainingJobStatus::completion_time, "Complete or Failed.");
    s.field("parkedSince", &TrainingJobStatus::parked_since, "Below gpus.min since.");
    s.field("avoidedNodes", &TrainingJobStatus::avoided_nodes,
            "Nodes that the job gets nothing new on for a while.")
        .entries(0, kAvoidedNodesMost)
        .keyed_by({"node"});
    s.field("replicas", &TrainingJobStatus::replicas, "GPUs held; for the scale subresource.");
    s.field("selector", &TrainingJobStatus::selector, "Label selector of the worker pods.");
    return s.build();
  }();
  return kSchema;
}

namespace {

TrainingJobSpec readable_part(const json::Value& spec, std::set<std::string>& unreadable) {
  TrainingJobSpec read;
  for (const FieldSchema& field : TrainingJobSpec::schema().fields()) {
    const json::Value& member = spec[field.name];
    if (member.is_null()) continue;
    TrainingJobSpec with_it = read;
    if (field.decode(&with_it, member, field.name).ok())
      read = std::move(with_it);
    else
      unreadable.insert(field.name);
  }
  return read;
}

}  // namespace

Result<TrainingJob> decode_training_job(const json::Value& object) {
  TrainingJob job;
  job.meta = decode_meta(object);
  auto spec = decode<TrainingJobSpec>(object["spec"], "spec");
  if (!spec.ok()) job.unreadable = spec.error().what();
  job.spec =
      spec.ok() ? std::move(spec).value() : readable_part(object["spec"], job.unreadable_members);
  TRY(job.status, decode<TrainingJobStatus>(object["status"], "status"));
  return job;
}

}  // namespace rubato::api
