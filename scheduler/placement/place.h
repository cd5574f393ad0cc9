// Which nodes: given how many pods, choose where. Works on what is free in this round, and can take
// back what was tried.
#pragma once

#include "scheduler/model/problem.h"
#include "scheduler/model/quota.h"

#include <optional>
#include <vector>

namespace rubato::sched {

// Free resources during one round. What happened since a mark can be undone.
class FreeNodes {
 public:
  explicit FreeNodes(const Problem& problem);
  void take(NodeIndex node, const Resources& what);  // it is there: CHECKed
  void give_back(NodeIndex node, const Resources& what);
  const Resources& operator[](NodeIndex node) const { return free_[node]; }

  std::size_t mark() const { return log_.size(); }
  void undo_to(std::size_t mark);
  // Another number after each change: equal numbers, equal contents.
  std::uint64_t version() const { return version_; }

 private:
  struct Change {
    NodeIndex node;
    Resources before;
  };
  Table<NodeIndex, Resources> free_;
  std::vector<Change> log_;
  std::uint64_t version_ = 0;
};

// What binds the rest of a job's pods.
struct Bound {
  std::optional<TypeIndex> type;  // of pods that it holds, or was given in this round
  std::optional<NodeIndex> node;  // where one node must hold all of them
  bool is_nowhere = false;        // that node is gone: nothing fits
  std::vector<NodeIndex> used;    // holds pods there
  // Tried before the others, where `type` says nothing.
  std::optional<TypeIndex> preferred = {};
};

class Placer {
 public:
  Placer(const Problem& problem, FreeNodes& free, const QuotaBook& quota);

  // What the pods that a job holds bind; pods that are lost do not.
  Bound bound_of(JobIndex job) const;

  // Places `pods` pods of the job: one GPU type unless it mixes, the type it already holds if any;
  // nodes that it already uses first, then the fullest that fit (best fit), ties by name. Takes the
  // resources. Nothing when they do not all fit, or the queue may not have them; then nothing is
  // taken. One entry a pod. Cost: the nodes it may use.
  std::optional<std::vector<NodeIndex>> place(JobIndex job, std::int64_t pods, const Bound& bound);

  // How many pods of the job fit now, over all nodes of its best type.
  std::int64_t pods_that_fit(JobIndex job, const Bound& bound);

 private:
  struct Candidate {
    NodeIndex node;
    std::int64_t fits = 0;
    bool used = false;  // the job already has a pod here
  };
  void find_candidates(JobIndex job, const Bound& bound, std::optional<TypeIndex> type);
  std::vector<std::optional<TypeIndex>> types_to_try(JobIndex job, const Bound& bound);
  void keep_within_quota(JobIndex job);

  const Problem& problem_;
  FreeNodes& free_;
  const QuotaBook& quota_;
  std::vector<Candidate> found_;         // the last search's
  Table<NodeIndex, char> is_used_;       // all 0 between two searches
  Table<TypeIndex, std::int64_t> left_;  // scratch
};

}  // namespace rubato::sched
