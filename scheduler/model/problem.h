// Problem: one ClusterState with its names resolved to positions, as a round works on it. Made
// once a round, in time linear in the state; then read only, but for answers that it works out when
// they are first asked for. The state must outlive it. One thread.
#pragma once

#include "scheduler/model/cluster_state.h"
#include "scheduler/model/dense.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rubato::sched {

// Its caller lets it have no GPUs: it is refused, or, before it has started, not admitted or to get
// spare ones only, which no policy gives it.
bool is_kept_out(const Job& job);

// May `job` use `node` at all (type, selectors)? It may come to, even if not now.
bool may_use(const Job& job, const Node& node);
// … and now: it is schedulable, and the job does not avoid it.
bool admits(const Job& job, const Node& node);

// All that a node has for jobs; what is not known of it is as much as anybody asks for.
Resources whole_of(const Node& node);

// Whether all its pods must be in one domain, or on one node.
inline bool is_confined(const Job& job) { return job.one_node || job.needs_domain(); }

// The most GPUs that a job could have of several nodes: of their best single type unless it mixes,
// of the best domain, or node, where one must hold the whole job.
class Capacity {
 public:
  struct OfType {
    TypeIndex type;
    Gpus gpus = 0;
  };
  explicit Capacity(const Job& job)
      : per_pod_(job.per_pod.gpus), is_confined_(is_confined(job)), mix_(job.mix) {}
  // `domain`: of Problem::confines.
  void add(DomainIndex domain, TypeIndex type, Gpus gpus);
  Gpus most() const {
    return most([](TypeIndex) { return std::numeric_limits<Gpus>::max(); });
  }
  // … where it may have limit(type) of a type, at most.
  template <class Limit>
  Gpus most(const Limit& limit) const {
    const auto most_of = [&](const std::vector<OfType>& types) {
      Gpus most = 0;
      for (const auto& [type, gpus] : types) {
        const Gpus of_type = std::min(gpus, in_pods(limit(type)));
        most = mix_ ? most + of_type : std::max(most, of_type);
      }
      return most;
    };
    if (!mix_ || !is_confined_) return most_of(by_type_);
    Gpus most = 0;
    for (const auto& [domain, types] : by_domain_) most = std::max(most, most_of(types));
    return most;
  }
  // Of all nodes of a type, or of its best domain; in the order of types.
  const std::vector<OfType>& by_type() const { return by_type_; }
  // Of a type in a domain, of Problem::confines.
  Gpus in(DomainIndex domain, TypeIndex type) const;

 private:
  Gpus in_pods(Gpus gpus) const { return gpus / per_pod_ * per_pod_; }

  Gpus per_pod_;
  bool is_confined_;
  bool mix_;
  std::map<DomainIndex, std::vector<OfType>> by_domain_;  // where it is confined
  std::vector<OfType> by_type_;
};

// Jobs whose pods can be on the same nodes, as many at a time: they share these answers.
struct JobGroup {
  std::vector<NodeIndex> admitted;  // now, in order
  std::vector<TypeIndex> types;     // of all nodes that may ever hold a pod of theirs, in order
  Capacity capacity;                // of those nodes
  Capacity capacity_now;            // of `admitted`, whoever holds it
  Gpus most_gpus = 0;               // as `capacity`, if its pods asked for GPUs only
};

class Problem {
 public:
  explicit Problem(const ClusterState& state);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const ClusterState& state() const { return state_; }
  const Job& job(JobIndex job) const { return state_.jobs[job.value]; }
  JobIndex end_of_jobs() const { return {static_cast<std::uint32_t>(state_.jobs.size())}; }
  const Node& node(NodeIndex node) const { return *nodes_[node]; }
  NodeIndex end_of_nodes() const { return nodes_.end_key(); }
  std::optional<NodeIndex> find_node(const NodeId& id) const;

  TypeIndex type_of(NodeIndex node) const { return type_of_node_[node]; }
  // Of a node, or of pods that somebody holds.
  TypeIndex type_named(std::string_view name) const;
  // Position of a topology level; CHECKs that there is one of that name.
  std::size_t level_named(std::string_view name) const;
  // None: the node is in no domain of that level.
  std::optional<DomainIndex> domain_of(std::size_t level, NodeIndex node) const;
  // What must hold the whole job, if this node is to hold a part: its domain, or as many as nodes
  // where it is the node; the same for all nodes where nothing is said. The node is one that the
  // job may use, or holds pods on.
  DomainIndex confines(const Job& job, NodeIndex node) const;

  // What keeps a job from being admitted: the jobs before it want so many GPUs of so many.
  struct Overload {
    Gpus wanted_before = 0;
    Gpus most = 0;
  };
  // Before anybody asks who takes part (scheduler/admission.h).
  void hold_back(JobIndex j, Overload why) { held_back_[j] = why; }
  const Overload* held_back(JobIndex j) const;  // null: it is admitted
  // It must start inside a guarantee that has no room for it (scheduler/admission.h): no policy is
  // to give it anything meanwhile. Before any is asked.
  void keep_out(JobIndex j) { beyond_guarantees_.insert(j); }
  // It is not let in by its caller, or not admitted yet, or kept out.
  bool is_kept_out(JobIndex j) const;
  // Whether it may have GPUs, as far as it and its queue are concerned.
  bool takes_part(JobIndex j) const;
  // Of the first pod that stays; none: it holds nothing.
  std::optional<TypeIndex> type_held(JobIndex j) const;
  // Where a job's pods are, each as in Job::held.
  struct HeldAt {
    TypeIndex type;
    std::optional<NodeIndex> node;  // none: it is gone
  };
  std::span<const HeldAt> held_at(JobIndex j) const {
    return std::span(held_at_).subspan(first_held_[j], job(j).held.size());
  }
  std::optional<JobIndex> host_of(JobIndex j) const;  // Job::guest_of; none: it is no guest
  std::optional<TypeIndex> find_type(std::string_view name) const;
  const std::string& name(TypeIndex type) const { return types_[type]; }
  std::size_t count_types() const { return types_.size(); }

  QueueIndex queue_of(JobIndex job) const { return queue_of_job_[job]; }
  QueueIndex queue_named(const std::string& name) const { return queue_numbers_.at(name); }
  const Queue* queue(QueueIndex queue) const { return queues_[queue]; }  // null: there is none
  // The queue that it is a part of.
  std::optional<QueueIndex> parent_of(QueueIndex queue) const { return parents_[queue]; }
  // The queue that its jobs are of in all but their quotas: itself, or the parent of one of one
  // user.
  QueueIndex home_of(QueueIndex queue) const;
  // Queue::quotas, with what its parts are guaranteed where that counts (queue_tree.h), and what it
  // is by its weight.
  const std::map<std::string, Quota>& quotas_of(QueueIndex queue) const;
  // Before anybody asks for them (scheduler/queue_weights.h).
  void set_quotas(QueueIndex queue, std::map<std::string, Quota> quotas) {
    raised_quotas_.insert_or_assign(queue, std::move(quotas));
  }
  std::size_t count_queues() const { return queues_.size(); }

  GroupIndex group_of(JobIndex job) const;
  const JobGroup& group(GroupIndex group) const { return groups_[group]; }
  const JobGroup& group(JobIndex job) const { return groups_[group_of(job)]; }

 private:
  struct Like {  // hashed and compared by what makes a group
    const Job* job;
    bool operator==(const Like& other) const;
  };
  struct LikeHash {
    std::size_t operator()(const Like& like) const;
  };

  void name_types();
  void find_held();
  void find_hosts();
  void find_parents();
  void name_domains();
  JobGroup make_group(const Job& job) const;

  const ClusterState& state_;
  Table<NodeIndex, const Node*> nodes_;
  Table<NodeIndex, TypeIndex> type_of_node_;
  Table<TypeIndex, std::string> types_;
  std::vector<Table<NodeIndex, std::optional<DomainIndex>>> domains_;  // by level
  Table<QueueIndex, const Queue*> queues_;
  Table<QueueIndex, std::optional<QueueIndex>> parents_;
  std::map<QueueIndex, std::map<std::string, Quota>> raised_quotas_;
  std::unordered_map<std::string_view, QueueIndex> queue_numbers_;
  Table<JobIndex, QueueIndex> queue_of_job_;
  std::unordered_map<std::uint32_t, JobIndex> hosts_;  // by guest
  std::vector<HeldAt> held_at_;                        // of all jobs, one after the other
  Table<JobIndex, std::size_t> first_held_;
  std::map<JobIndex, Overload> held_back_;
  std::set<JobIndex> beyond_guarantees_;
  mutable std::unordered_map<Like, GroupIndex, LikeHash> group_numbers_;
  mutable Table<GroupIndex, JobGroup> groups_;
  mutable Table<JobIndex, std::optional<GroupIndex>> group_of_job_;
};

}  // namespace rubato::sched
