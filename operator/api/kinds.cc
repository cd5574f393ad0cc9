#include "operator/api/kinds.h"

#include "operator/api/resources.h"
#include "operator/api/scheduling_policy.h"
#include "operator/api/throughput_profile.h"
#include "operator/api/training_job.h"
#include "operator/api/training_queue.h"

#include <cctype>

namespace rubato::api {

namespace {

const Column kAge{"Age", "date", ".metadata.creationTimestamp", "Since its creation."};

struct Schemas {
  const ObjectSchema* spec = nullptr;
  const ObjectSchema* status = nullptr;
};

Kind make_kind(const kube::ResourceType& type, const char* short_name, const char* doc,
               Schemas schemas, std::vector<Column> columns) {
  Kind kind;
  kind.type = type;
  for (const char letter : type.kind)
    kind.singular += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  kind.short_name = short_name;
  kind.doc = doc;
  kind.spec = schemas.spec;
  kind.status = schemas.status;
  kind.columns = std::move(columns);
  return kind;
}

Kind training_job() {
  Kind kind = make_kind(
      kTrainingJob, "tj",
      "One elastic training run. It trains with any number of GPUs between gpus.min and gpus.max, "
      "and survives the loss of nodes.",
      {&TrainingJobSpec::schema(), &TrainingJobStatus::schema()},
      {{"State", "string", ".status.state", "One word for how it stands."},
       {"GPUs", "string", ".status.display.gpus", "Now / min-max."},
       {"Type", "string", ".status.display.type", "GPU type."},
       {"Progress", "string", ".status.display.progress", "Part of the steps that is done."},
       {"Loss", "string", ".status.display.loss", "Of the last step."},
       {"Tokens/s", "string", ".status.display.tokensPerSecond", "Present speed."},
       {"Goodput", "string", ".status.display.goodput", "Useful part of the GPU time held."},
       {"Rescales", "integer", ".status.rescales.count", "Changes of size so far."},
       kAge,
       {"Queue", "string", ".spec.queue", "Its TrainingQueue.", true},
       {"Reason", "string", ".status.reason", "Why it is in this state.", true}});
  kind.in_all = true;
  kind.has_scale = true;
  return kind;
}

Kind training_queue() {
  return make_kind(kTrainingQueue, "tq",
                   "Who shares the GPUs, and how: guarantees, limits and weight of a team.",
                   {&TrainingQueueSpec::schema(), &TrainingQueueStatus::schema()},
                   {{"Weight", "number", ".spec.weight", "Share beyond the guarantees."},
                    {"Pending", "integer", ".status.pending", "Jobs without GPUs."},
                    {"Running", "integer", ".status.running", "Jobs with GPUs."},
                    {"GPUs", "integer", ".status.gpus", "GPUs held."},
                    kAge,
                    {"Share", "integer", ".status.share", "GPUs guaranteed by weight.", true},
                    {"Parent", "string", ".spec.parent", "Queue that it is a part of.", true}});
}

Kind scheduling_policy() {
  return make_kind(
      kSchedulingPolicy, "sp", "How the scheduler decides. The object named `default` is in force.",
      {&SchedulingPolicySpec::schema(), &SchedulingPolicyStatus::schema()},
      {{"Policy", "string", ".spec.policy", "The policy asked for."},
       {"Active", "string", ".status.active", "The policy in force."},
       {"Round", "integer", ".spec.roundSeconds", "Longest time between rounds, seconds."},
       kAge});
}

Kind throughput_profile() {
  return make_kind(
      kThroughputProfile, "tpp",
      "Measured speed of one kind of job on GPU types and counts, shared between jobs.",
      {&ThroughputProfileSpec::schema(), nullptr},
      {{"Description", "string", ".spec.description", "The kind in words."},
       {"Types", "string", ".spec.points[*].gpuType", "GPU types of its points."},
       {"GPUs", "string", ".spec.points[*].gpus", "How many, of each point."},
       {"Tokens/s", "string", ".spec.points[*].tokensPerSecond", "How fast."},
       kAge,
       {"Model", "string", ".spec.model", "The kind.", true}});
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
