// What policies share that say sizes: GPUs by type, and what the queues may take of them. Which
// nodes have room is the session's business.
#pragma once

#include "scheduler/model/confinement.h"
#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace rubato::sched {

// What nobody holds.
inline Table<NodeIndex, Resources> free_on_nodes(const Problem& problem) {
  Table<NodeIndex, Resources> free;
  free.reserve(problem.end_of_nodes().value);
  for (NodeIndex n; n < problem.end_of_nodes(); ++n) {
    free.push_back(problem.node(n).free);
    free[n].raise_to_zero();
  }
  return free;
}

// What each node has for all jobs together that take part: it is free, or one of them holds it, or
// it is about to be free.
inline Table<NodeIndex, Resources> room_on_nodes(const Problem& problem) {
  Table<NodeIndex, Resources> room = free_on_nodes(problem);
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    for (std::size_t i = 0; i < job.held.size(); ++i) {
      const Held& pod = job.held[i];
      const auto node = problem.held_at(j)[i].node;
      if (node && !pod.lost && (pod.leaving || problem.takes_part(j))) room[*node] += job.per_pod;
    }
  }
  return room;
}

// How many GPUs of each type a job could have if no other job were there: where nodes have CPU,
// memory and all else that its pods ask for, and in one domain where that must hold the whole job.
// Found once for all jobs of a group.
class RoomByType {
 public:
  explicit RoomByType(const Problem& problem) : RoomByType(problem, room_on_nodes(problem)) {}
  RoomByType(const Problem& problem, Table<NodeIndex, Resources> on_nodes)
      : problem_(problem), on_nodes_(std::move(on_nodes)) {}

  // On nodes that admit it; nothing where its queue has its cells, and none of this type.
  Gpus most(JobIndex j, TypeIndex type) {
    return may_have(j, type) ? gpus_of(of_group(j), type) : 0;
  }
  // … of its best type, or of all together where it mixes them.
  Gpus most(JobIndex j) { return of_group(j).most(); }
  // On nodes that admit it, once the pods of another job have left that are not leaving yet, where
  // `on_nodes` does not count them. O(pods of that job · log of domains).
  Gpus most_without(JobIndex leaver, JobIndex j, TypeIndex type) {
    const Capacity& now = of_group(j);
    const Job& job = problem_.job(j);
    Gpus most = gpus_of(now, type);
    std::map<DomainIndex, Gpus> more;
    for (const auto& [node, given] : given_by(leaver)) {
      if (problem_.type_of(node) != type || !admits(job, problem_.node(node))) continue;
      Resources room = on_nodes_[node];
      const std::int64_t before = room.copies_of(job.per_pod);
      room += given;
      more[problem_.confines(job, node)] +=
          (room.copies_of(job.per_pod) - before) * job.per_pod.gpus;
    }
    for (const auto& [domain, gpus] : more) most = std::max(most, now.in(domain, type) + gpus);
    return most;
  }

  // For policies whose types hold: whether it has room for its minimum there, or holds that much of
  // the type. Where it may use one type only, or mixes them, there is nothing to choose.
  bool may_choose(JobIndex j, TypeIndex type) {
    const Job& job = problem_.job(j);
    const auto least = size_at_least(job, job.min);
    if (!least) return false;
    if (job.mix || problem_.group(j).types.size() == 1) return true;
    return most(j, type) >= *least || held(j, type) >= *least;
  }

  // Of a type that it may choose: what it could have there if no other job were there, and what it
  // holds. Where not even its minimum has room, and there is nothing to choose, what all nodes have
  // that admit it. Of another type 0.
  Gpus most_to_try(JobIndex j, TypeIndex type) {
    if (!may_choose(j, type)) return 0;
    const Gpus room = most(j, type) + held_elsewhere(j, type);
    const bool has_room = room >= problem_.job(j).min;
    return std::max(has_room ? room : gpus_of(problem_.group(j).capacity_now, type), held(j, type));
  }

 private:
  const Capacity& of_group(JobIndex j) {
    const Job& job = problem_.job(j);
    const std::size_t group = problem_.group_of(j).value;
    if (group >= of_groups_.size()) of_groups_.resize(group + 1);
    if (of_groups_[group]) return *of_groups_[group];
    Capacity& capacity = of_groups_[group].emplace(job);
    for (const NodeIndex n : problem_.group(j).admitted)
      capacity.add(problem_.confines(job, n), problem_.type_of(n),
                   on_nodes_[n].copies_of(job.per_pod) * job.per_pod.gpus);
    return capacity;
  }
  bool may_have(JobIndex j, TypeIndex type) const {
    const Queue* queue = problem_.queue(problem_.queue_of(j));
    return queue == nullptr || !is_kept_off(*queue, problem_.name(type));
  }
  static Gpus gpus_of(const Capacity& capacity, TypeIndex type) {
    const auto& types = capacity.by_type();
    const auto found = std::ranges::find(types, type, &Capacity::OfType::type);
    return found == types.end() ? 0 : found->gpus;
  }
  Gpus held(JobIndex j, TypeIndex type) const {
    return problem_.type_held(j) == type ? effective_gpus(problem_.job(j)) : 0;
  }
  std::map<NodeIndex, Resources> given_by(JobIndex leaver) const {
    std::map<NodeIndex, Resources> given;
    for (std::size_t i = 0; i < problem_.job(leaver).held.size(); ++i) {
      const Held& pod = problem_.job(leaver).held[i];
      const auto node = problem_.held_at(leaver)[i].node;
      if (node && !pod.lost && !pod.leaving) given[*node] += problem_.job(leaver).per_pod;
    }
    return given;
  }
  // On nodes that do not admit it any more: it may keep these.
  Gpus held_elsewhere(JobIndex j, TypeIndex type) const {
    const Job& job = problem_.job(j);
    Gpus gpus = 0;
    for (std::size_t i = 0; i < job.held.size(); ++i) {
      const auto& [of_type, node] = problem_.held_at(j)[i];
      if (job.held[i].stays() && of_type == type &&
          !(node && std::ranges::binary_search(problem_.group(j).admitted, *node)))
        gpus += job.held[i].gpus;
    }
    return gpus;
  }

  const Problem& problem_;
  const Table<NodeIndex, Resources> on_nodes_;
  std::vector<std::optional<Capacity>> of_groups_;
};

class Room {
 public:
  // As if none of the jobs that take part held any; what others hold is not there.
  explicit Room(const Problem& problem) : Room(problem, room_on_nodes(problem)) {}

  // What nobody holds.
  static Room unheld(const Problem& problem) {
    Room room(problem, free_on_nodes(problem));
    for (JobIndex j; j < problem.end_of_jobs(); ++j) {
      const std::vector<Held>& held = problem.job(j).held;
      for (std::size_t i = 0; i < held.size(); ++i)
        if (held[i].stays())
          room.quota_.take(problem.queue_of(j), problem.held_at(j)[i].type, held[i].gpus);
    }
    return room;
  }

  // None: it may have no GPUs. Else the type that it holds, or the one that has most left.
  std::optional<TypeIndex> type_for(JobIndex j) const {
    if (!problem_.takes_part(j)) return std::nullopt;
    if (const auto held = problem_.type_held(j)) return held;
    const auto& types = problem_.group(j).types;
    if (types.empty()) return std::nullopt;
    return *std::ranges::max_element(types, {}, [&](TypeIndex t) { return left_[t]; });
  }

  const Table<TypeIndex, Gpus>& left() const { return left_; }
  // What is left for the job, its queue's quota kept.
  Gpus left_for(JobIndex j, TypeIndex type) const {
    return std::min(left_[type], quota_.room(problem_.queue_of(j), type));
  }

  // What the queue may still take of all types together; kNoLimit.
  Gpus left_of(QueueIndex queue) const { return quota_.room(queue); }
  QueueIndex tightest(QueueIndex queue) const { return quota_.tightest(queue); }

  // False, and nothing is taken: there are not so many.
  bool take(JobIndex j, TypeIndex type, Gpus gpus) {
    if (gpus > left_for(j, type)) return false;
    left_[type] -= gpus;
    quota_.take(problem_.queue_of(j), type, gpus);
    return true;
  }

  void give_back(JobIndex j, TypeIndex type, Gpus gpus) {
    left_[type] += gpus;
    quota_.give_back(problem_.queue_of(j), type, gpus);
  }

  struct Minimum {
    TypeIndex type;
    Gpus gpus = 0;
  };
  // None, and nothing is taken: it may have none, or there are not so many.
  std::optional<Minimum> take_minimum(JobIndex j) {
    const auto type = type_for(j);
    const auto gpus = size_at_least(problem_.job(j), problem_.job(j).min);
    if (!type || !gpus || !take(j, *type, *gpus)) return std::nullopt;
    return Minimum{*type, *gpus};
  }

 private:
  Room(const Problem& problem, const Table<NodeIndex, Resources>& on_nodes)
      : problem_(problem), quota_(problem), left_(problem.count_types()) {
    for (NodeIndex n; n < problem.end_of_nodes(); ++n)
      if (problem.node(n).schedulable)
        left_[problem.type_of(n)] +=
            std::clamp<Gpus>(on_nodes[n].gpus, 0, std::max<Gpus>(problem.node(n).gpus_total, 0));
  }

  const Problem& problem_;
  QuotaBook quota_;
  Table<TypeIndex, Gpus> left_;
};

}  // namespace rubato::sched
