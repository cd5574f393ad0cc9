// Reads the state and the plan anew: nothing here is shared with what made the plan.
#include "scheduler/certificate/feasible.h"

#include "scheduler/certificate/queue_limits.h"
#include "scheduler/model/confinement.h"

#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

// To a domain, from the widest level down.
using DomainPath = std::vector<std::string>;

DomainPath path_to(const ClusterState& state, const Node& node, const std::string& level) {
  DomainPath path;
  for (const std::string& wider : state.levels) {
    const auto name = node.domains.find(wider);
    path.push_back(name == node.domains.end() ? "" : name->second);
    if (wider == level) break;
  }
  return path;
}

// What is new is alike, and like some of what is kept.
template <class Key>
bool is_one_kind(const std::set<Key>& added, const std::set<Key>& kept) {
  return added.size() <= 1 && (added.empty() || kept.empty() || kept.contains(*added.begin()));
}

std::string called(const Job& job) {
  return fmt::format("job \"{}\"", job.name.empty() ? job.id : job.name);
}

// Each function: the rule that is broken, "" where none is.
class Feasibility {
 public:
  Feasibility(const ClusterState& state, const Plan& plan)
      : state_(state), plan_(plan), limits_(state) {
    for (const Job& job : state.jobs) jobs_.emplace(job.id, &job);
    for (const Node& node : state.nodes) nodes_.emplace(node.id, &node);
  }

  std::string why_not() {
    std::string broken = of_names();
    if (broken.empty()) broken = of_nodes();
    if (broken.empty()) broken = of_guests();
    for (const Action& action : plan_.actions)
      if (broken.empty()) broken = of_job(action);
    if (broken.empty()) broken = of_limits();
    if (broken.empty()) broken = of_cells();
    return broken;
  }

 private:
  const Job& job_of(const Action& action) const { return *jobs_.at(action.job); }
  const Queue* queue_of(const Job& job) const {
    const auto found = state_.queues.find(job.queue);
    return found == state_.queues.end() ? nullptr : &found->second;
  }

  // What one user has of a queue is closed with it.
  const Queue& home_of(const Queue& queue) const {
    const auto parent = state_.queues.find(queue.parent);
    return queue.of_one_user && parent != state_.queues.end() ? parent->second : queue;
  }

  std::string of_names() {
    for (const Action& action : plan_.actions) {
      const auto found = jobs_.find(action.job);
      if (found == jobs_.end()) return fmt::format("there is no job \"{}\"", action.job);
      const Job& job = *found->second;
      if (!leavers_of_.try_emplace(action.job, action.remove.begin(), action.remove.end()).second)
        return called(job) + " has two actions";
      std::set<std::int64_t> held;
      for (const Held& pod : job.held) held.insert(pod.ordinal);
      for (const std::int64_t ordinal : action.remove)
        if (!held.contains(ordinal))
          return fmt::format("{} holds no pod {}, which is to leave", called(job), ordinal);
      for (const Placement& pod : action.add) {
        const auto node = nodes_.find(pod.node);
        if (node == nodes_.end()) return fmt::format("there is no node \"{}\"", pod.node);
        if (node->second->gpu_type != pod.gpu_type)
          return fmt::format("node \"{}\" has no GPUs of type \"{}\"", pod.node, pod.gpu_type);
      }
      if (!action.shares_with.empty() && !jobs_.contains(action.shares_with))
        return fmt::format("{} is to share GPUs of \"{}\", and there is no such job", called(job),
                           action.shares_with);
    }
    return "";
  }

  std::string of_nodes() const {
    std::map<NodeId, Resources> taken;
    for (const Action& action : plan_.actions)
      for (const Placement& pod : action.add) {
        Resources one = job_of(action).per_pod;
        if (!action.shares_with.empty()) one.gpus = 0;
        taken[pod.node] += one;
      }
    for (const auto& [id, resources] : taken) {
      const Node& node = *nodes_.at(id);
      if (!node.schedulable)
        return fmt::format("pods are placed on node \"{}\", which takes none now", id);
      if (resources.gpus > node.free.gpus)
        return fmt::format("node \"{}\" has {} GPUs free, and pods of {} are placed there", id,
                           node.free.gpus, resources.gpus);
      if (!node.free.fits(resources))
        return fmt::format(
            "node \"{}\" has less CPU, memory or something else free than pods ask for that are "
            "placed there",
            id);
    }
    return "";
  }

  // A guest for which there is an action stops.
  std::string of_guests() const {
    std::map<std::pair<JobId, NodeId>, std::int64_t> room;  // pods of hosts without a guest
    std::set<JobId> hosts;
    for (const Job& job : state_.jobs) {
      if (job.guest_of.empty()) {
        for (const Held* pod : kept(job)) ++room[{job.id, pod->node}];
      } else if (!leavers_of_.contains(job.id)) {
        hosts.insert(job.guest_of);
        for (const Held* pod : kept(job)) --room[{job.guest_of, pod->node}];
      }
    }
    for (const Action& action : plan_.actions) {
      if (action.shares_with.empty()) continue;
      hosts.insert(action.shares_with);
      for (const Placement& pod : action.add) --room[{action.shares_with, pod.node}];
    }
    for (const auto& [where, pods] : room)
      if (pods < 0)
        return fmt::format("more pods share the GPUs of \"{}\" on node \"{}\" than it has there",
                           where.first, where.second);
    for (const JobId& host : hosts) {
      const auto leavers = leavers_of_.find(host);
      if (leavers != leavers_of_.end() && !leavers->second.empty())
        return fmt::format("others share the GPUs of \"{}\", and pods of it are to leave", host);
    }
    return "";
  }

  // What counts now and is not told to leave.
  std::vector<const Held*> kept(const Job& job) const {
    const auto leavers = leavers_of_.find(job.id);
    std::vector<const Held*> pods;
    for (const Held& pod : job.held)
      if (pod.stays() && (leavers == leavers_of_.end() || !leavers->second.contains(pod.ordinal)))
        pods.push_back(&pod);
    return pods;
  }

  std::string of_job(const Action& action) const {
    const Job& job = job_of(action);
    if (action.kind == ActionKind::kStart) {
      if (!job.refused.empty()) return called(job) + " is started, and is refused";
      if (!job.not_admitted.empty())
        return called(job) + " is started, and its queue does not admit it";
      if (queue_of(job) == nullptr) return called(job) + " is started, and has no queue";
      if (home_of(*queue_of(job)).closed)
        return called(job) + " is started, and its queue is closed";
    }
    const std::vector<const Held*> pods = kept(job);
    std::string broken = of_size(action, pods);
    if (broken.empty()) broken = of_pods(action);
    return broken.empty() ? of_places(action, pods) : broken;
  }

  std::string of_size(const Action& action, const std::vector<const Held*>& pods) const {
    const Job& job = job_of(action);
    Gpus before = 0, after = 0;
    bool are_alike = true;  // else perPod has changed, and its sizes are not to be had
    for (const Held& pod : job.held)
      if (pod.stays()) before += pod.gpus;
    for (const Held* pod : pods) {
      after += pod->gpus;
      are_alike = are_alike && pod->gpus == job.per_pod.gpus;
    }
    for (const Placement& pod : action.add) after += pod.gpus;
    if (before > 0 && after == 0 && job.runs_on(state_.now_ms))
      return called(job) + " is stopped, and is not to be preempted now";
    const char* broken = nullptr;
    if (are_alike && after != 0 && after != before && after < job.min)
      broken = "less than its minimum";
    if (after > before && after > job.max) broken = "more than its maximum";
    if (are_alike && after > before && job.shape == Shape::kPowersOfTwo &&
        (after & (after - 1)) != 0)
      broken = "which is no power of two";
    return broken == nullptr ? ""
                             : fmt::format("{} is to have {} GPUs, {}", called(job), after, broken);
  }

  std::string of_pods(const Action& action) const {
    const Job& job = job_of(action);
    for (const Placement& pod : action.add) {
      if (pod.gpus != job.per_pod.gpus)
        return fmt::format("{} is given a pod of {} GPUs, and asks for pods of {}", called(job),
                           pod.gpus, job.per_pod.gpus);
      if (!job.allow.empty() && std::ranges::find(job.allow, pod.gpu_type) == job.allow.end())
        return fmt::format("{} is given GPUs of type \"{}\", which it may not use", called(job),
                           pod.gpu_type);
      if ((job.eligible && !job.eligible->contains(pod.node)) || job.avoid.contains(pod.node))
        return fmt::format("{} is given GPUs on node \"{}\", which it may not use", called(job),
                           pod.node);
    }
    return "";
  }

  std::string of_places(const Action& action, const std::vector<const Held*>& pods) const {
    const Job& job = job_of(action);
    std::set<std::string> types, old_types;
    std::set<NodeId> nodes, old_nodes;
    for (const Placement& pod : action.add) {
      types.insert(pod.gpu_type);
      nodes.insert(pod.node);
    }
    for (const Held* pod : pods) {
      old_types.insert(pod->gpu_type);
      old_nodes.insert(pod->node);
    }
    if (!job.mix && !is_one_kind(types, old_types))
      return called(job) + " is given GPUs of several types, and does not mix them";
    if (job.one_node && !is_one_kind(nodes, old_nodes))
      return called(job) + " is given GPUs on several nodes, and must be on one";
    return job.needs_domain() ? of_domain(job, nodes, old_nodes) : "";
  }

  std::string of_domain(const Job& job, const std::set<NodeId>& nodes,
                        const std::set<NodeId>& old_nodes) const {
    const std::string& level = job.topology->level;
    std::set<DomainPath> domains, old_domains;
    for (const NodeId& id : nodes) {
      const Node& node = *nodes_.at(id);
      if (!node.domains.contains(level))
        return fmt::format("{} is given GPUs on node \"{}\", which is in no {}", called(job), id,
                           level);
      domains.insert(path_to(state_, node, level));
    }
    for (const NodeId& id : old_nodes)
      if (const auto node = nodes_.find(id);
          node != nodes_.end() && node->second->domains.contains(level))
        old_domains.insert(path_to(state_, *node->second, level));
    if (is_one_kind(domains, old_domains)) return "";
    return fmt::format("{} is given GPUs in more than one {}, and must be in one", called(job),
                       level);
  }

  // GPUs by queue and type, "*" for all.
  using Holdings = std::map<std::string, std::map<std::string, Gpus>>;
  void add(Holdings& to, const std::string& queue, const std::string& type, Gpus gpus) const {
    for (const std::string& one : limits_.names_of(queue)) {
      to[one][type] += gpus;
      to[one]["*"] += gpus;
    }
  }

  // Guests take nothing of their queue's.
  std::string of_limits() const {
    Holdings given, after;
    for (const auto& [name, queue] : state_.queues)
      for (const auto& [type, gpus] : queue.held_by_leavers) add(after, name, type, gpus);
    for (const Job& job : state_.jobs)
      if (job.guest_of.empty())
        for (const Held* pod : kept(job)) add(after, job.queue, pod->gpu_type, pod->gpus);
    for (const Action& action : plan_.actions) {
      if (!action.shares_with.empty() || !job_of(action).guest_of.empty()) continue;
      for (const Placement& pod : action.add)
        for (Holdings* to : {&given, &after})
          add(*to, job_of(action).queue, pod.gpu_type, pod.gpus);
    }
    for (const auto& [queue, of_types] : given)
      for (const auto& [type, gpus] : of_types) {
        const auto most = limits_.most_together(queue, type);
        const Gpus holds = after.at(queue).at(type);
        if (most && holds > *most)
          return fmt::format("queue \"{}\" is to have {} GPUs{}, and may have {}", queue, holds,
                             type == "*" ? "" : fmt::format(" of type \"{}\"", type), *most);
      }
    return "";
  }

  // Nodes, or domains, in which pods are placed in a cell of their queue.
  std::string of_cells() const {
    std::map<std::tuple<std::string, std::string, std::string>, std::set<DomainPath>>
        bound;  // by queue, type and level
    std::map<NodeId, std::string> owners;
    for (const Action& action : plan_.actions) {
      const std::string& name = job_of(action).queue;
      const Queue* queue = queue_of(job_of(action));
      if (queue == nullptr) continue;
      for (const Placement& pod : action.add) {
        if (pod.cell.empty()) {
          if (!is_confined_to_cells(*queue)) continue;
          return fmt::format("queue \"{}\" is given GPUs outside its cells, and has nothing else",
                             name);
        }
        if (owners.try_emplace(pod.node, name).first->second != name)
          return fmt::format("node \"{}\" is in cells of two queues", pod.node);
        bound[{name, pod.gpu_type, pod.cell}].insert(
            pod.cell == kNodeLevel ? DomainPath{pod.node}
                                   : path_to(state_, *nodes_.at(pod.node), pod.cell));
      }
    }
    for (const auto& [of, cells] : bound) {
      const auto& [queue, type, level] = of;
      std::int64_t most = 0;
      for (const CellQuota& quota : state_.queues.at(queue).cells)
        if (quota.gpu_type == type && quota.level == level) most += quota.count;
      if (std::ssize(cells) > most)
        return fmt::format("queue \"{}\" is given {} cells of level {} and type \"{}\", and has {}",
                           queue, cells.size(), level, type, most);
    }
    return "";
  }

  const ClusterState& state_;
  const Plan& plan_;
  const QueueLimits limits_;
  std::unordered_map<std::string_view, const Job*> jobs_;
  std::unordered_map<std::string_view, const Node*> nodes_;
  // Of jobs for which there is an action: the pods that are to leave, by their ordinals.
  std::unordered_map<std::string_view, std::set<std::int64_t>> leavers_of_;
};

}  // namespace

std::string why_infeasible(const ClusterState& state, const Plan& plan) {
  return Feasibility(state, plan).why_not();
}

}  // namespace rubato::sched
