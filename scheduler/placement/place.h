// Which nodes: given how many pods, choose where. Works on what is free in this round, and can take
// back what was tried.
#pragma once

#include "scheduler/model/problem.h"
#include "scheduler/model/quota.h"
#include "scheduler/placement/ranked_nodes.h"

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace rubato::sched {

// Free resources during one round. What happened since a mark can be undone.
class FreeNodes {
 public:
  explicit FreeNodes(const Problem& problem);
  // It is there: CHECKed.
  void take(NodeIndex node, const Resources& what, std::int64_t times = 1);
  void give_back(NodeIndex node, const Resources& what);
  const Resources& operator[](NodeIndex node) const { return free_[node]; }
  Gpus gpus(TypeIndex type) const { return gpus_[type]; }  // on all nodes of a type

  std::size_t mark() const { return log_.size(); }
  void undo_to(std::size_t mark);
  // Which nodes changed, one after the other; they are forgotten when they are many.
  const std::vector<NodeIndex>& changes() const { return changes_; }
  std::uint64_t forgotten() const { return forgotten_; }  // how often

 private:
  struct Change {
    NodeIndex node;
    Resources before;
  };
  void note(NodeIndex node, Gpus before);

  const Problem& problem_;
  Table<NodeIndex, Resources> free_;
  Table<TypeIndex, Gpus> gpus_;
  std::vector<Change> log_;
  std::vector<NodeIndex> changes_;
  std::uint64_t forgotten_ = 0;
};

// What binds the rest of a job's pods.
struct Bound {
  std::optional<TypeIndex> type;      // of pods that it holds, or was given in this round
  std::optional<NodeIndex> node;      // where one node must hold all of them
  std::optional<DomainIndex> domain;  // … one domain of its topology level
  bool is_nowhere = false;            // that node, or domain, is gone: nothing fits
  std::vector<NodeIndex> used;        // holds pods there
  // Tried before the others, where `type` says nothing.
  std::optional<TypeIndex> preferred = {};
};

class Placer {
 public:
  Placer(const Problem& problem, FreeNodes& free, const QuotaBook& quota);

  // What the pods that a job holds bind; pods that are lost do not.
  Bound bound_of(JobIndex job) const;
  // The job is confined: its pods must be on the node, or in the domain, of one that is `to`.
  void bind(Bound& bound, const Job& job, std::optional<NodeIndex> to) const;

  // Places `pods` pods of the job: one GPU type unless it mixes, the type it already holds if any;
  // nodes that it already uses first, then the fullest that fit (best fit), ties by name; one node
  // that holds them all comes before several. Takes the resources. Nothing when they do not all
  // fit, or the queue may not have them; then nothing is taken. One entry a pod. Cost: the nodes
  // that changed since its group was last asked about, and those that it gets; where it mixes
  // types, or its queue may not have all that is free, or it has a topology, all that it may use.
  //
  // With a topology: of the domains that hold all its pods one with a node that does, then the one
  // with least room; where it has pods already, none but theirs. If it only prefers that, the same
  // among the domains of the next wider level, and at last all nodes; there its pods go where they
  // are in fewest domains.
  std::optional<std::vector<NodeIndex>> place(JobIndex job, std::int64_t pods, const Bound& bound);

  // How many pods of the job fit now, over all nodes of its best type.
  std::int64_t pods_that_fit(JobIndex job, const Bound& bound);

  // Whether room on that node may help it: it may get pods there now, if there is room.
  bool may_get(JobIndex job, NodeIndex node) { return nodes_of(job).has(node); }

 private:
  using Ranked = RankedNodes::Ranked;
  // One placement that is being made.
  struct Gang {
    JobIndex index;
    const Job& job;
    const Bound& bound;
    const RankedNodes& nodes;
    std::int64_t pods = 0;
    std::vector<NodeIndex> placed = {};
  };
  const RankedNodes& nodes_of(JobIndex job);
  std::vector<TypeIndex> types_to_try(JobIndex job, const Bound& bound, const RankedNodes& nodes);
  bool place_on(TypeIndex type, Gang& gang);
  bool place_within_quota(const std::vector<TypeIndex>& types, Gang& gang);
  std::vector<Ranked> fitting_of(const std::vector<TypeIndex>& types, const Gang& gang) const;
  void cap_by_quota(std::vector<Ranked>& nodes, const Gang& gang) const;
  std::vector<Ranked> used_of(const Gang& gang, std::optional<TypeIndex> type) const;
  void put(Gang& gang, const Ranked& on);
  bool put_all(Gang& gang, std::vector<Ranked> nodes);

  // topology.cc
  struct Domain {
    std::vector<Ranked> nodes;
    std::int64_t fits = 0;
    bool has_whole = false;  // one node holds them all
  };
  using Domains = std::map<DomainIndex, Domain>;
  bool place_near(const std::vector<TypeIndex>& types, Gang& gang);
  bool place_in_one_domain(std::size_t level, const std::vector<Ranked>& all, Gang& gang);
  Domains domains_of(std::size_t level, const std::vector<Ranked>& all, const Gang& gang) const;
  std::optional<DomainIndex> domain_used(std::size_t level, const Gang& gang) const;
  void sort_by_domains(std::size_t from, std::vector<Ranked>& nodes, const Gang& gang) const;
  std::int64_t fit_in_one_domain(const std::vector<TypeIndex>& types, const Gang& gang) const;

  const Problem& problem_;
  FreeNodes& free_;
  const QuotaBook& quota_;
  std::unordered_map<std::uint32_t, RankedNodes> ranked_;  // by group
};

}  // namespace rubato::sched
