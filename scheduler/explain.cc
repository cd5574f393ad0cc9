// The sentences of a plan: plan.h.
#include "common/check.h"
#include "common/words.h"
#include "scheduler/model/sizes.h"
#include "scheduler/plan.h"

#include <fmt/format.h>

namespace rubato::sched {
namespace {

struct CauseText {
  std::string operator()(const RoomForMinimum&) const { return "there is room for it"; }
  std::string operator()(const FreeGpusHelp&) const { return "free GPUs raise its throughput"; }
  std::string operator()(const WorthMoreElsewhere&) const {
    return "other jobs gain more from these GPUs";
  }
  std::string operator()(const MaxLowered&) const { return "gpus.max was lowered"; }
  std::string operator()(const SizeNotAllowed&) const {
    return "gpus.shape and perPod do not allow the size that it had";
  }
  std::string operator()(const LimitLowered& l) const {
    return fmt::format("queue \"{}\" holds more than its limit", l.queue);
  }
  std::string operator()(const PodLost& pod) const {
    const char* what = pod.how == PodLost::How::kNotStarted ? "did not start in time"
                       : pod.how == PodLost::How::kRefused  ? "cannot be used there"
                                                            : "is lost";
    return fmt::format("pod {} on node {} {}", pod.ordinal, pod.node, what);
  }
  std::string operator()(const ChangesType& type) const {
    return fmt::format("its turn is on {} now", type.to);
  }
  std::string operator()(const ChangesNodes&) const {
    return "all jobs together gain where it moves to other nodes";
  }
  std::string operator()(const LeavesNode& leaves) const {
    return fmt::format("leaves node {} before that goes{}", leaves.node,
                       leaves.why.empty() ? "" : " (" + leaves.why + ")");
  }
  std::string operator()(const SharesGpus& with) const {
    return fmt::format("shares the GPUs of {}", with.host);
  }
  std::string operator()(const StopsSharing& with) const {
    return with.why == StopsSharing::Why::kHostLeaves
               ? fmt::format("it shared the GPUs of {}, which leaves them", with.host)
               : fmt::format("sharing the GPUs of {} is not worth it", with.host);
  }
  std::string operator()(const MakesRoom& to) const {
    return fmt::format("gives GPUs to {}, which is below its minimum", to.job);
  }
  std::string operator()(const Displaced& d) const {
    switch (d.by) {
      case Displaced::By::kPriority:
        return fmt::format("preempted by {} (priority {} over {})", d.job, d.its_priority,
                           d.own_priority);
      case Displaced::By::kGuarantee:
        return fmt::format("preempted by {} (queue \"{}\" takes back what it is guaranteed)", d.job,
                           d.of);
      case Displaced::By::kOrder:
        return fmt::format("preempted by {} (policy {} puts it first)", d.job, d.of);
    }
    check_failed(__FILE__, __LINE__, "Displaced::By");
  }
};

std::string in_brackets(const std::string& clause) {
  return clause.empty() ? "" : " (" + clause + ")";
}

// " on one node", " in one rack", or nothing.
std::string together(const Job& job) {
  if (job.one_node) return " on one node";
  return job.needs_domain() ? " in one " + job.topology->level : "";
}

std::string in_all(const Job& job) {
  return job.needs_domain() ? " in one " + job.topology->level : " in all";
}

// What is free for it of what it needs.
std::string shortage(const Verdict& v, const Job& job) {
  std::string text =
      fmt::format("needs {}{}, {} {} free for it{}", counted(v.needed, "more GPU"), together(job),
                  v.available, agreeing(v.available, "is", "are"), in_brackets(job.narrowed));
  if (!job.avoid.empty())
    text += fmt::format(" (for now none on {}, where a pod of it was of no use)",
                        fmt::join(job.avoid, ", "));
  if (job.gets_spare_only()) text += "; " + job.spare_only;
  return text;
}

// Its smallest size.
std::string needs(const Job& job) {
  const Gpus size = size_at_least(job, 0).value_or(job.min);
  return "needs " + counted(size, "GPU") +
         (size == job.min
              ? ""
              : fmt::format(" (the first size from {} on that suits shape and perPod)", job.min)) +
         together(job);
}

// What helps a job that can have `most` GPUs at all.
std::string smaller_or(Gpus most, Job job, const std::string& other) {
  job.min = 1;
  const auto size = size_at_most(job, most);
  return size ? fmt::format("lower spec.gpus.min to {}, or {}", *size, other) : other;
}

// What nodes have for it; `else_needed`: of what they may have too little for their GPUs.
std::string gpus_and_room(const Verdict& v, const std::string& where, const char* else_needed) {
  if (v.of_nodes == 0) return fmt::format("{}{}", v.available, where);
  return fmt::format("{}{}, and {} for {} of them", v.of_nodes, where, else_needed, v.available);
}

std::string exceeds_cluster(const Verdict& v, const Job& job) {
  if (v.available == 0)
    return fmt::format(
        "{}; no node that it may use{} can hold a pod of it{}: let it use others, or add some",
        needs(job), job.needs_domain() ? " in a " + job.topology->level : "",
        in_brackets(job.narrowed));
  const std::string most =
      job.one_node ? "the largest node it may use has " + gpus_and_room(v, "", "CPU and memory")
                   : "the nodes it may use have " + gpus_and_room(v, in_all(job), "CPU and memory");
  const char* other = job.one_node         ? "add a larger one"
                      : job.needs_domain() ? "set spec.topology.mode to preferred"
                                           : "add nodes";
  return fmt::format("{}; {}{}: {}", needs(job), most, in_brackets(job.narrowed),
                     smaller_or(v.available, job, other));
}

// The queue whose limit is meant.
std::string limiting_queue(const Verdict& v, const Job& job) {
  return v.queue.empty()
             ? fmt::format("queue \"{}\"", job.queue)
             : fmt::format("queue \"{}\", which has \"{}\" as a part,", v.queue, job.queue);
}

std::string exceeds_queue(const Verdict& v, const Job& job) {
  return fmt::format("{}; {} lets it have {} at most: {}", needs(job), limiting_queue(v, job),
                     v.available, smaller_or(v.available, job, "let the queue hold more"));
}

std::string nodes_unavailable(const Verdict& v, const Job& job) {
  const std::string avoided = job.avoid.empty() ? "" : ", or avoided for now";
  if (v.of_nodes == 0)
    return fmt::format(
        "{}; the nodes it may use that take pods now have {}: others are not ready, cordoned or "
        "tainted{}{}",
        needs(job), gpus_and_room(v, in_all(job), ""), avoided, in_brackets(job.narrowed));
  return fmt::format(
      "{}; the nodes it may use that take pods now have {}, beside pods of no job here: {}{}",
      needs(job), gpus_and_room(v, in_all(job), "CPU, memory and pod slots"),
      smaller_or(v.available, job, "let a pod of it ask for less of these, or add nodes"),
      in_brackets(job.narrowed));
}

std::string queue_is_full(const Verdict& v, const Job& job) {
  const std::string promised =
      v.promised == 0
          ? ""
          : fmt::format(", has promised {} to jobs that come first,", counted(v.promised, "GPU"));
  return fmt::format("{} holds {}{} and may take {} more that this job can use; needed: {}",
                     limiting_queue(v, job), counted(v.in_use, "GPU"), promised, v.available,
                     v.needed);
}

std::string not_in_cells(const Verdict& v, const Job& job) {
  if (v.outcome == Outcome::kNever)
    return fmt::format("{}; the cells of queue \"{}\" have {} at most, and it may not borrow: {}",
                       needs(job), job.queue, v.available,
                       smaller_or(v.available, job, "give it more cells, or let it borrow"));
  return fmt::format(
      "{}; the cells of queue \"{}\" have no room for it (its jobs hold {}), and it may not "
      "borrow: it starts when one of them ends",
      needs(job), job.queue, counted(v.in_use, "GPU"));
}

std::string waits_for_others_to_end(const Verdict& v, const Job& job) {
  return fmt::format("needs {}{}; {} would make room for it, but may not be preempted{}",
                     counted(v.needed, "more GPU"), together(job), fmt::join(v.waits_for, ", "),
                     v.until_ms ? " yet" : "");
}

std::string not_inside_guarantee(const Verdict& v, const Job& job) {
  const bool waits = v.in_use > 0;
  return fmt::format(
      "needs {} and may not be preempted; such jobs start inside what their queue is guaranteed, "
      "and queue \"{}\" has no room for it there{}: {}give the queue a larger guarantee, or make "
      "it preemptible",
      counted(v.needed, "more GPU"), job.queue, waits ? " beside others of the kind" : "",
      waits ? "wait for these, " : "");
}

std::string not_admitted_yet(const Verdict& v, const Job& job) {
  return fmt::format(
      "{}; jobs that came before it want {} at least, and the policy admits {} (parameters.maxLoad "
      "times the healthy GPUs that it may use): it is admitted as they end, or with a higher "
      "maxLoad",
      needs(job), counted(v.in_use, "GPU"), v.available);
}

}  // namespace

std::string to_text(const Cause& cause) { return std::visit(CauseText{}, cause); }

Explanation explain(const Verdict& v, const Job& job) {
  switch (v.reason) {
    case Reason::kPlaced:
      return {"Placed", ""};
    case Reason::kRefused:
      return {job.refused_as.empty() ? "Refused" : job.refused_as, job.refused};
    case Reason::kQueueUnknown:
      return {
          "QueueUnknown",
          fmt::format(
              "there is no TrainingQueue \"{}\"{}; create it or change spec.queue", job.queue,
              v.outcome == Outcome::kPlaced ? ": it keeps what it holds, and does not grow" : "")};
    case Reason::kQueueForbidden:
      return {"QueueForbidden", job.not_admitted};
    case Reason::kQueueClosed:
      return {"QueueClosed", fmt::format("queue \"{}\" takes no new jobs", job.queue)};
    case Reason::kQueueLimit:
      return {"QueueLimit",
              v.outcome == Outcome::kNever ? exceeds_queue(v, job) : queue_is_full(v, job)};
    case Reason::kNoAllowedSize:
      return {"NoAllowedSize",
              fmt::format("no size from spec.gpus.min ({}) to max ({}) suits shape and perPod; "
                          "change one of them",
                          job.min, job.max)};
    case Reason::kExceedsCluster:
      return {"ExceedsCluster", exceeds_cluster(v, job)};
    case Reason::kEveryNodeAvoided:
      return {"EveryNodeAvoided",
              fmt::format("pods of it were of no use on any node that it may use ({}); they "
                          "are tried again in a while",
                          fmt::join(job.avoid, ", "))};
    case Reason::kNodesAvoided:
      return {"NodesAvoided",
              fmt::format("{}; the nodes it may use have {}{} (for now none "
                          "on {}, where a pod of it was of no use: status.avoidedNodes says "
                          "why, and until when{})",
                          needs(job), v.available, in_all(job), fmt::join(job.avoid, ", "),
                          job.narrowed.empty() ? "" : "; " + job.narrowed)};
    case Reason::kNodesUnavailable:
      return {"NodesUnavailable", nodes_unavailable(v, job)};
    case Reason::kWaitingForRelease:
      return {"WaitingForRelease",
              shortage(v, job) + "; waits for " +
                  (v.waits_for.empty() ? "pods that are leaving"
                                       : fmt::format("{}", fmt::join(v.waits_for, ", ")))};
    case Reason::kInsufficientGpus:
      return {"InsufficientGPUs",
              shortage(v, job) + (job.gets_spare_only()
                                      ? ""
                                      : "; the rest is held by others, or promised to them, and "
                                        "by the policy, priorities and their minimums none of "
                                        "them has to make room for it")};
    case Reason::kBehind:
      return {"Behind", fmt::format("waits behind {}, which comes first and does not fit yet",
                                    fmt::join(v.waits_for, ", "))};
    case Reason::kCellsFull:
      return {"CellsFull", not_in_cells(v, job)};
    case Reason::kLoadLimit:
      return {"LoadLimit", not_admitted_yet(v, job)};
    case Reason::kNodeLeaves:
      return {"NodeLeaves",
              fmt::format("node {} is about to go, and pods of it stay there until then: there is "
                          "no room elsewhere now with which it would have its minimum of {}",
                          v.node, counted(job.min, "GPU"))};
    case Reason::kOthersNotPreemptible:
      return {"OthersNotPreemptible", waits_for_others_to_end(v, job)};
    case Reason::kGuaranteeFull:
      return {"GuaranteeFull", not_inside_guarantee(v, job)};
  }
  check_failed(__FILE__, __LINE__, "Reason");
}

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kStart:
      return "start";
    case ActionKind::kGrow:
      return "grow";
    case ActionKind::kShrink:
      return "shrink";
    case ActionKind::kRepair:
      return "repair";
    case ActionKind::kPreempt:
      return "preempt";
  }
  check_failed(__FILE__, __LINE__, "ActionKind");
}

std::string to_text(ActionKind kind, Gpus gpus) {
  if (gpus == 0) return "holds no GPUs any more";
  switch (kind) {
    case ActionKind::kStart:
      return "starts with " + counted(gpus, "GPU");
    case ActionKind::kGrow:
      return "grows to " + counted(gpus, "GPU");
    case ActionKind::kShrink:
      return "shrinks to " + counted(gpus, "GPU");
    case ActionKind::kRepair:
      return "goes on with " + counted(gpus, "GPU");
    case ActionKind::kPreempt:
      return "keeps " + counted(gpus, "GPU");
  }
  check_failed(__FILE__, __LINE__, "ActionKind");
}

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPlaced:
      return "placed";
    case Outcome::kNotNow:
      return "notNow";
    case Outcome::kNever:
      return "never";
  }
  check_failed(__FILE__, __LINE__, "Outcome");
}

}  // namespace rubato::sched
