#include "operator/api/job_spec.h"

#include "operator/api/bounds.h"
#include "operator/api/schema_builder.h"

#include <fmt/format.h>

namespace rubato::api {

const ObjectSchema& GpusSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<GpusSpec> s("GpusSpec",
                              "How many GPUs the job may hold. It moves within [min, max] while it "
                              "trains; min equal to max is a rigid job.");
    s.field("min", &GpusSpec::min, "Fewest GPUs the job trains with; below, it is parked.")
        .required()
        .at_least(1)
        .at_most(kMaxGpus);
    s.field("max", &GpusSpec::max,
            fmt::format("Most GPUs the job may hold; `kubectl scale --replicas` sets it. At most "
                        "batch.global / batch.micro, and {} pods.",
                        kMaxPods))
        .required()
        .at_least(1)
        .at_most(kMaxGpus);
    s.field("perPod", &GpusSpec::per_pod,
            "GPUs of one pod: they come and go together. Divides min and max.")
        .defaulted()
        .immutable()
        .at_least(1)
        .at_most(1024);
    s.field("shape", &GpusSpec::shape,
            "Which counts are allowed: `any` multiple of perPod, or `powersOfTwo`. This release "
            "refuses `wholeNodes`.")
        .defaulted();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& AcceleratorsSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<AcceleratorsSpec> s("AcceleratorsSpec", "Which GPU types the job may use.");
    s.field("allow", &AcceleratorsSpec::allow,
            "Values of the node label nvidia.com/gpu.product; any type when empty.")
        .immutable()
        .entries(0, 32)
        .each_length(1, 63);
    s.field("mix", &AcceleratorsSpec::mix,
            "Whether the job may hold several types at once; this release refuses true.")
        .defaulted()
        .immutable();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TopologySpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TopologySpec> s("TopologySpec", "How near to each other its pods are to be.");
    s.field("level", &TopologySpec::level,
            "Name of a level from the operator's configuration (`scheduler.topologyLevels` of the "
            "chart), such as zone. Its domains are the values of a node label.")
        .required()
        .length(1, 63);
    s.field(
         "mode", &TopologySpec::mode,
         "`required` waits for GPUs within one domain of the level. `preferred` takes that, else "
         "one domain of the next wider level, at last as few domains as hold the job.")
        .defaulted();
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& ObjectiveSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<ObjectiveSpec> s("ObjectiveSpec", "What the job is worth to the scheduler.");
    s.field(
         "weight", &ObjectiveSpec::weight,
         "What the job is worth against others of the same priority, where the scheduling policy "
         "weighs jobs (rubato, pollux, sia, gavel, crius, hare, shockwave); and under every "
         "policy that leaves sizes to Rubato, which of the jobs that can grow grows first.")
        .defaulted()
        .more_than(0)
        .at_most(1e6);
    s.field("deadline", &ObjectiveSpec::deadline,
            "When the job should be done, as RFC 3339, such as 2026-12-01T08:00:00Z. A wish for "
            "the scheduler, where its policy looks at deadlines (edf, chronus, elasticFlow); "
            "condition DeadlineAtRisk says how it stands. activeDeadlineSeconds is the limit that "
            "ends a job.");
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& StopSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<StopSpec> s("StopSpec", "When training is done.");
    s.field("steps", &StopSpec::steps,
            "Optimizer steps. May change while the job runs: all workers take it up at the same "
            "step; one that is past already ends the job there.")
        .required()
        .at_least(1)
        .at_most(kMaxSteps);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& CheckpointSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<CheckpointSpec> s("CheckpointSpec", "Checkpoints, as safetensors.");
    s.field("every", &CheckpointSpec::every, "Steps between checkpoints.")
        .defaulted()
        .at_least(1)
        .at_most(kMaxSteps);
    s.field("path", &CheckpointSpec::path,
            "Folder as the worker pod sees it, on storage that all nodes share. Empty: none; a "
            "suspended job then starts again from step 0.")
        .length(0, kMaxPath);
    s.field("keep", &CheckpointSpec::keep, "How many complete checkpoints stay.")
        .defaulted()
        .at_least(1)
        .at_most(1000);
    s.field("giveUpAfter", &CheckpointSpec::give_up_after,
            "Seconds for which a job holds its state and tries again when its last checkpoint, at "
            "the end or before a stop, cannot be written (a full disk, storage that is away).")
        .defaulted()
        .at_least(0)
        .at_most(kMaxSeconds);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& FaultToleranceSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<FaultToleranceSpec> s("FaultToleranceSpec", "What the job survives.");
    s.field("tolerate", &FaultToleranceSpec::tolerate,
            "Losses of pods at one moment that must not cost a return to a checkpoint. Each pod "
            "holds the whole state, so it must be less than the pods of gpus.min. Runtimes "
            "torchrun and command take 0 alone: what they run begins again from its own "
            "checkpoint.")
        .defaulted()
        .at_least(0)
        .at_most(64);
    s.field("maxRestarts", &FaultToleranceSpec::max_restarts,
            "Failures of the job's own making before it is Failed. Lost nodes, preemption and "
            "rejection by a kubelet do not count.")
        .defaulted()
        .at_least(0)
        .at_most(1e6);
    return s.build();
  }();
  return kSchema;
}

const ObjectSchema& TrainingJobSpec::schema() {
  static const ObjectSchema kSchema = [] {
    SchemaBuilder<TrainingJobSpec> s("TrainingJobSpec", "What the job is and what it may use.");
    s.field("queue", &TrainingJobSpec::queue, "TrainingQueue that the job belongs to.")
        .defaulted()
        .length(1, 63);
    s.field("priorityClassName", &TrainingJobSpec::priority_class_name,
            "Kubernetes PriorityClass; jobs of higher priority are placed first.")
        .length(0, 253);
    s.field("suspend", &TrainingJobSpec::suspend,
            "True: checkpoint, release all GPUs and wait. False again: go on.")
        .defaulted();
    s.field("preemptible", &TrainingJobSpec::preemptible,
            "False: once it runs it is never stopped, nor moved, for another job, whatever that "
            "one's priority is. It still shrinks to gpus.min for others. Where queues are "
            "guaranteed anything it starts inside the guarantee of its own (docs/queues.md).")
        .defaulted()
        .immutable();
    s.field("minRunSeconds", &TrainingJobSpec::min_run_seconds,
            "How long it runs at least before it may be stopped or moved for another job: from "
            "the moment when it is given GPUs after it had none (status.allocation.runningSince).")
        .defaulted()
        .at_least(0)
        .at_most(86400);
    s.field("gpus", &TrainingJobSpec::gpus, "How many GPUs.").required();
    s.field("accelerators", &TrainingJobSpec::accelerators, "Which GPU types.").defaulted();
    s.field("topology", &TrainingJobSpec::topology, "How near to each other its pods are to be.")
        .immutable();
    s.field("objective", &TrainingJobSpec::objective, "Weight and wished end.").defaulted();
    s.field("runtime", &TrainingJobSpec::runtime,
            "`builtin`: Rubato's own trainer, described by `training`. `pytorch`: the command of "
            "the template's container is a script that trains a model of its own with the package "
            "`rubato`; it goes on while the number of its processes changes. `torchrun`: that "
            "command is any elastic PyTorch script; it is ended and started again whenever the "
            "number of its processes changes. `command`: any program, with a fixed number of "
            "processes.")
        .defaulted()
        .immutable();
    s.field("training", &TrainingJobSpec::training, "What runtimes builtin and pytorch train.");
    s.field("faultTolerance", &TrainingJobSpec::fault_tolerance, "What the job survives.")
        .defaulted();
    s.field(
         "parkSeconds", &TrainingJobSpec::park_seconds,
         "How long a job that fell below gpus.min keeps its GPUs, and holds its state in memory, "
         "before it checkpoints, releases them and queues again. Of runtimes torchrun and "
         "command nothing runs in that time: the program was ended, and begins again from its "
         "own checkpoint.")
        .defaulted()
        .at_least(0)
        .at_most(kMaxSeconds);
    s.field("gracePeriodSeconds", &TrainingJobSpec::grace_period_seconds,
            "Time for the last checkpoint when the job is suspended, preempted or deleted.")
        .defaulted()
        .immutable()
        .at_least(0)
        .at_most(86400);
    s.field(
         "activeDeadlineSeconds", &TrainingJobSpec::active_deadline_seconds,
         "Longest time from its first step since it was submitted or resumed; then the job is "
         "Failed (DeadlineExceeded). Time in the queue before that, and suspended, does not count.")
        .at_least(1)
        .at_most(kMaxSeconds);
    s.field("ttlSecondsAfterFinished", &TrainingJobSpec::ttl_seconds_after_finished,
            "The job is deleted so long after its end; unset: never.")
        .at_least(0)
        .at_most(kMaxSeconds);
    s.field("template", &TrainingJobSpec::pod_template,
            "PodTemplateSpec of the worker pods: image, command, volumes, tolerations. The "
            "operator adds GPUs, node, environment and identity.")
        .required()
        .immutable();
    return s.build();
  }();
  return kSchema;
}

}  // namespace rubato::api
