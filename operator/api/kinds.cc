#include "operator/api/kinds.h"

#include "operator/api/resources.h"
#include "operator/api/scheduling_policy.h"
#include "operator/api/throughput_profile.h"
#include "operator/api/training_job.h"
#include "operator/api/training_queue.h"

namespace rubato::api {

namespace {

const Column kAge{"Age", "date", ".metadata.creationTimestamp", "Since its creation."};

Kind training_job() {
  Kind kind;
  kind.type = kTrainingJob;
  kind.singular = "trainingjob";
  kind.short_name = "tj";
  kind.in_all = true;
  kind.doc =
      "One elastic training run. It trains with any number of GPUs between gpus.min and gpus.max, "
      "and survives the loss of nodes.";
  kind.spec = &TrainingJobSpec::schema();
  kind.status = &TrainingJobStatus::schema();
  kind.columns = {
      {"State", "string", ".status.state", "One word for how it stands."},
      {"GPUs", "string", ".status.display.gpus", "Now / min-max."},
      {"Type", "string", ".status.display.type", "GPU type."},
      {"Progress", "string", ".status.display.progress", "Part of the steps that is done."},
      {"Loss", "string", ".status.display.loss", "Of the last step."},
      {"Tokens/s", "string", ".status.display.tokensPerSecond", "Present speed."},
      {"Goodput", "string", ".status.display.goodput", "Useful part of the GPU time held."},
      {"Rescales", "integer", ".status.rescales.count", "Changes of size so far."},
      kAge,
      {"Queue", "string", ".spec.queue", "Its TrainingQueue.", true},
      {"Reason", "string", ".status.reason", "Why it is in this state.", true},
  };
  kind.has_scale = true;
  return kind;
}

Kind training_queue() {
  Kind kind;
  kind.type = kTrainingQueue;
  kind.singular = "trainingqueue";
  kind.short_name = "tq";
  kind.doc = "Who shares the GPUs, and how: guarantees, limits and weight of a team.";
  kind.spec = &TrainingQueueSpec::schema();
  kind.status = &TrainingQueueStatus::schema();
  kind.columns = {
      {"Weight", "number", ".spec.weight", "Share beyond the guarantees."},
      {"Pending", "integer", ".status.pending", "Jobs without GPUs."},
      {"Running", "integer", ".status.running", "Jobs with GPUs."},
      {"GPUs", "integer", ".status.gpus", "GPUs held."},
      kAge,
      {"Parent", "string", ".spec.parent", "Queue that it is a part of.", true},
  };
  return kind;
}

Kind scheduling_policy() {
  Kind kind;
  kind.type = kSchedulingPolicy;
  kind.singular = "schedulingpolicy";
  kind.short_name = "sp";
  kind.doc = "How the scheduler decides. The object named `default` is in force.";
  kind.spec = &SchedulingPolicySpec::schema();
  kind.status = &SchedulingPolicyStatus::schema();
  kind.columns = {
      {"Policy", "string", ".spec.policy", "The policy asked for."},
      {"Active", "string", ".status.active", "The policy in force."},
      {"Round", "integer", ".spec.roundSeconds", "Longest time between rounds, seconds."},
      kAge,
  };
  return kind;
}

Kind throughput_profile() {
  Kind kind;
  kind.type = kThroughputProfile;
  kind.singular = "throughputprofile";
  kind.short_name = "tpp";
  kind.doc = "Measured speed of one model on GPU types and counts, shared between jobs.";
  kind.spec = &ThroughputProfileSpec::schema();
  kind.columns = {{"Model", "string", ".spec.model", "Digest of the model."}, kAge};
  return kind;
}

}  // namespace

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll{training_job(), training_queue(), scheduling_policy(),
                                      throughput_profile()};
  return kAll;
}

const Kind* find_kind(std::string_view kind) {
  for (const Kind& candidate : kinds())
    if (candidate.type.kind == kind) return &candidate;
  return nullptr;
}

}  // namespace rubato::api
