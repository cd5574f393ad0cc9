// Whether a plan is sound, by none of the scheduler's own code: its books before and after.
#pragma once

#include "scheduler/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::sched {

// The books of a plan: what each job and queue held before it, and holds when it is done.
class Books {
 public:
  Books(const ClusterState& state, const Plan& plan) : state_(state), plan_(plan) {
    for (const Job& job : state.jobs) by_id_[job.id] = &job;
  }

  void expect_sound() const {
    expect_room_on_nodes();
    expect_hosts();
    for (const Action& action : plan_.actions) expect_whole(action);
    expect_limits();
    for (const Action& action : plan_.actions) expect_leave(action);
    expect_cells();
  }

 private:
  const Job& job(const JobId& id) const { return *by_id_.at(id); }

  // Nothing is given but what is free before the plan: a pod that is told to leave in it holds its
  // GPUs on (P8).
  void expect_room_on_nodes() const {
    std::map<NodeId, Resources> taken;
    for (const Action& action : plan_.actions)
      for (const Placement& add : action.add) {
        Resources one = job(action.job).per_pod;
        if (!action.shares_with.empty()) one.gpus = 0;
        taken[add.node] += one;
      }
    for (const Node& node : state_.nodes) {
      if (!taken.contains(node.id)) continue;
      EXPECT_TRUE(node.schedulable) << node.id;
      EXPECT_TRUE(node.free.fits(taken[node.id])) << node.id;
    }
  }

  // Guests are on GPUs that their host holds and keeps, no two on the same.
  void expect_hosts() const {
    std::map<JobId, const Action*> action_of;
    for (const Action& action : plan_.actions) action_of[action.job] = &action;
    std::map<std::pair<JobId, NodeId>, Gpus> room;
    for (const Job& job : state_.jobs)
      if (job.guest_of.empty())
        for (const Held& held : job.held)
          if (held.stays()) room[{job.id, held.node}] += held.gpus;
    const auto settle = [&](const JobId& host, const NodeId& node, Gpus gpus) {
      Gpus& left = room[{host, node}];
      left -= gpus;
      EXPECT_GE(left, 0) << host;
      EXPECT_TRUE(job(host).guest_of.empty()) << host;
      if (const auto found = action_of.find(host); found != action_of.end()) {
        EXPECT_TRUE(found->second->remove.empty()) << host;
      }
    };
    for (const Job& guest : state_.jobs) {
      const bool is_stopped = action_of.contains(guest.id);
      if (guest.guest_of.empty() || is_stopped) continue;
      for (const Held& held : guest.held)
        if (held.stays()) settle(guest.guest_of, held.node, held.gpus);
    }
    for (const Action& action : plan_.actions)
      if (!action.shares_with.empty())
        for (const Placement& add : action.add) settle(action.shares_with, add.node, add.gpus);
  }

  // The pods that count once the plan is done.
  std::vector<Placement> after(const Action& action) const {
    std::vector<Placement> pods = action.add;
    for (const Held& held : job(action.job).held)
      if (held.stays() && std::ranges::count(action.remove, held.ordinal) == 0)
        pods.push_back({held.node, held.gpu_type, held.gpus});
    return pods;
  }

  static Gpus sum(const std::vector<Placement>& pods) {
    return std::accumulate(pods.begin(), pods.end(), Gpus{0},
                           [](Gpus all, const Placement& pod) { return all + pod.gpus; });
  }

  Gpus before(const Job& job) const {
    Gpus all = 0;
    for (const Held& held : job.held)
      if (held.stays()) all += held.gpus;
    return all;
  }

  // The ways to those that nodes are in, from the widest level down to that one.
  std::set<std::vector<std::string>> domains_of(const std::set<NodeId>& nodes,
                                                const std::string& level) const {
    std::set<std::vector<std::string>> domains;
    for (const NodeId& id : nodes) {
      const auto& names = std::ranges::find(state_.nodes, id, &Node::id)->domains;
      EXPECT_TRUE(names.contains(level)) << id;
      std::vector<std::string> way;
      for (const std::string& wider : state_.levels) {
        way.push_back(names.contains(wider) ? names.at(wider) : "");
        if (wider == level) break;
      }
      domains.insert(way);
    }
    return domains;
  }

  // Gangs are whole, sizes admissible, of one type, and where the job may be.
  void expect_whole(const Action& action) const {
    const Job& of = job(action.job);
    if (action.kind == ActionKind::kStart) {
      EXPECT_TRUE(of.refused.empty() && of.not_admitted.empty()) << of.id;
      EXPECT_FALSE(state_.queues.at(of.queue).closed) << of.id;
    }
    const std::vector<Placement> pods = after(action);
    const Gpus size = sum(pods);
    const Gpus had = before(of);
    if (size != 0 && size < had) {
      EXPECT_GE(size, of.min) << of.id;
    }
    if (size > had) {
      EXPECT_GE(size, of.min) << of.id;
      EXPECT_LE(size, of.max) << of.id;
      EXPECT_EQ(size % of.per_pod.gpus, 0) << of.id;
      if (of.shape == Shape::kPowersOfTwo) {
        EXPECT_EQ(size & (size - 1), 0) << of.id << " " << size;
      }
    }
    std::set<std::string> types;
    std::set<NodeId> nodes;
    for (const Placement& pod : pods) {
      types.insert(pod.gpu_type);
      nodes.insert(pod.node);
    }
    if (!of.mix) {
      EXPECT_LE(types.size(), 1u) << of.id;
    }
    if (of.one_node) {
      EXPECT_LE(nodes.size(), 1u) << of.id;
    }
    if (of.topology && of.topology->required) {
      EXPECT_LE(domains_of(nodes, of.topology->level).size(), 1u) << of.id;
    }
    for (const Placement& pod : action.add) {
      EXPECT_EQ(pod.gpus, of.per_pod.gpus) << of.id;
      if (!of.allow.empty()) {
        EXPECT_GT(std::ranges::count(of.allow, pod.gpu_type), 0) << of.id;
      }
      if (of.eligible) {
        EXPECT_TRUE(of.eligible->contains(pod.node)) << of.id;
      }
      EXPECT_FALSE(of.avoid.contains(pod.node)) << of.id;
    }
  }

  // GPUs by queue and type, "*" for all.
  using Holdings = std::map<std::string, std::map<std::string, Gpus>>;
  // At the queue and at all above it.
  void add(Holdings& to, std::string queue, const std::string& type, Gpus gpus) const {
    for (; !queue.empty(); queue = parent_of(queue)) {
      to[queue][type] += gpus;
      to[queue]["*"] += gpus;
    }
  }
  std::string parent_of(const std::string& queue) const {
    const auto found = state_.queues.find(queue);
    return found == state_.queues.end() ? "" : found->second.parent;
  }

  // What queues hold before the plan; pods that are told to leave count no more.
  Holdings now() const {
    Holdings all;
    for (const Job& job : state_.jobs)
      for (const Held& held : job.held)
        if (held.stays() && job.guest_of.empty()) add(all, job.queue, held.gpu_type, held.gpus);
    for (const auto& [name, queue] : state_.queues)
      for (const auto& [type, gpus] : queue.held_by_leavers) add(all, name, type, gpus);
    return all;
  }

  // A queue that may not borrow is limited to its guarantees; where it names none for all types
  // together, it has none of a type that it does not name.
  std::optional<Gpus> most(const Queue& queue, const std::string& type) const {
    const auto of_type = queue.quotas.find(type);
    std::optional<Gpus> most;
    if (of_type != queue.quotas.end()) most = of_type->second.limit;
    if (queue.borrowing || !queue.cells.empty()) return most;  // expect_cells
    const Gpus of_parts = guaranteed_parts(queue.name, type);
    const bool is_named = of_type != queue.quotas.end();
    if (is_named || of_parts > 0)
      return std::min(most.value_or(1'000'000),
                      std::max(of_parts, is_named ? of_type->second.guaranteed : 0));
    const bool is_of_all = queue.quotas.contains("*") || guaranteed_parts(queue.name, "*") > 0;
    return type != "*" && !is_of_all ? std::optional<Gpus>(0) : most;
  }
  // What its parts are guaranteed together.
  Gpus guaranteed_parts(const std::string& whole, const std::string& type) const {
    Gpus sum = 0;
    for (const auto& [name, part] : state_.queues) {
      if (part.parent != whole || whole.empty()) continue;
      const auto of_type = part.quotas.find(type);
      const Gpus own = of_type == part.quotas.end() ? 0 : of_type->second.guaranteed;
      sum += std::max(own, guaranteed_parts(name, type));
    }
    return sum;
  }

  // A queue that is given anything stays within what it may hold once the plan is done. What it
  // held too much before is nobody's fault, and no reason to be given more.
  void expect_limits() const {
    Holdings given;
    Holdings held = now();
    for (const Action& action : plan_.actions) {
      if (!action.shares_with.empty() || !job(action.job).guest_of.empty()) continue;
      const std::string& queue = job(action.job).queue;
      for (const Placement& pod : action.add) {
        add(given, queue, pod.gpu_type, pod.gpus);
        add(held, queue, pod.gpu_type, pod.gpus);
      }
      for (const Held& pod : job(action.job).held)
        if (pod.stays() && std::ranges::count(action.remove, pod.ordinal) > 0)
          add(held, queue, pod.gpu_type, -pod.gpus);
    }
    for (const auto& [name, of_queue] : given)
      for (const auto& [type, gpus] : of_queue) {
        const auto limit = most(state_.queues.at(name), type);
        if (limit) {
          EXPECT_LE(held[name][type], *limit) << name << " " << type;
        }
      }
  }

  // Nobody is stopped but by leave: of the queue and the job that displaces it, never for a lower
  // priority, and a guarantee only takes back what is borrowed.
  void expect_leave(const Action& action) const {
    if (action.kind != ActionKind::kPreempt) return;
    const auto* cause = std::get_if<Displaced>(&action.cause);
    EXPECT_TRUE(cause != nullptr || std::holds_alternative<ChangesType>(action.cause) ||
                std::holds_alternative<ChangesNodes>(action.cause) ||
                std::holds_alternative<StopsSharing>(action.cause) ||
                std::holds_alternative<PodLost>(action.cause))
        << action.job << " " << to_text(action.cause);
    if (cause == nullptr) return;
    const Job& victim = job(action.job);
    const Job& by = *std::ranges::find(state_.jobs, cause->job, &Job::name);
    if (cause->by == Displaced::By::kGuarantee) {
      // For its cells a queue stops its own jobs, too, that are in none.
      if (state_.queues.at(by.queue).cells.empty()) {
        EXPECT_NE(victim.queue, by.queue) << victim.id;
      }
      return;
    }
    EXPECT_TRUE(by.may_preempt) << victim.id << " by " << by.id;
    if (cause->by == Displaced::By::kPriority) {
      EXPECT_LT(victim.priority, by.priority) << victim.id;
    }
    if (cause->by == Displaced::By::kOrder) {
      EXPECT_LE(victim.priority, by.priority) << victim.id;
    }
    const Preempts leave = state_.queues.at(by.queue).preempts;
    EXPECT_NE(leave, Preempts::kNobody) << victim.id << " by " << by.id;
    if (leave == Preempts::kOwnQueue) {
      EXPECT_EQ(victim.queue, by.queue) << victim.id;
    }
  }

  // Nodes, or domains, in which pods are placed in a cell of their queue: of each queue no more
  // than it has, none of two queues, and on no node that another queue's job is in a cell of.
  void expect_cells() const {
    std::map<std::tuple<std::string, std::string, std::string>, std::set<std::vector<std::string>>>
        bound;  // by queue, type and level
    std::map<NodeId, std::string> owners;
    for (const Action& action : plan_.actions) {
      const std::string& queue = job(action.job).queue;
      for (const Placement& add : action.add) {
        const bool borrows = state_.queues.at(queue).borrowing;
        EXPECT_TRUE(!add.cell.empty() || borrows || state_.queues.at(queue).cells.empty());
        if (add.cell.empty()) continue;
        EXPECT_EQ(owners.try_emplace(add.node, queue).first->second, queue) << add.node;
        auto& cells = bound[{queue, add.gpu_type, add.cell}];
        if (add.cell == kNodeLevel)
          cells.insert({add.node});
        else
          cells.merge(domains_of({add.node}, add.cell));
      }
    }
    for (const auto& [key, cells] : bound) {
      std::int64_t most = 0;
      for (const CellQuota& quota : state_.queues.at(std::get<0>(key)).cells)
        if (quota.gpu_type == std::get<1>(key) && quota.level == std::get<2>(key))
          most += quota.count;
      EXPECT_LE(std::ssize(cells), most) << std::get<0>(key);
    }
  }

  const ClusterState& state_;
  const Plan& plan_;
  std::map<JobId, const Job*> by_id_;
};

}  // namespace rubato::sched
