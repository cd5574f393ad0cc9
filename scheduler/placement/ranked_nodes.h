// The nodes that a group's jobs may be on, by how many of their pods fit: kept for as long as a
// round lasts, so that a job looks at the nodes that it gets and at those that changed, not at all.
//
// Cost: made in N log N; brought up to date in the nodes that changed since, each a binary search
// and a shift within its type.
#pragma once

#include "scheduler/model/problem.h"

#include <compare>
#include <cstdint>
#include <vector>

namespace rubato::sched {

class FreeNodes;  // scheduler/placement/place.h

class RankedNodes {
 public:
  struct Ranked {
    std::int64_t fits = 0;  // pods, at least one
    NodeIndex node;
    auto operator<=>(const Ranked&) const = default;
  };
  // All must outlive it. `job`: any of the group.
  RankedNodes(const Problem& problem, const FreeNodes& free, GroupIndex group, const Job& job);

  void update();  // after changes of `free`, before anything is asked

  // The fullest that fit first, ties by node.
  const std::vector<Ranked>& of(TypeIndex type) const { return by_type_[type].nodes; }
  std::int64_t total(TypeIndex type) const { return by_type_[type].total; }  // pods
  std::int64_t fits(NodeIndex node) const { return std::max<std::int64_t>(fits_[node], 0); }
  bool has(NodeIndex node) const { return fits_[node] >= 0; }  // whether it is one of them

 private:
  struct OfType {
    std::vector<Ranked> nodes;
    std::int64_t total = 0;
  };
  void rank_all();
  void rank(NodeIndex node);

  const Problem& problem_;
  const FreeNodes& free_;
  const GroupIndex group_;
  const Resources per_pod_;
  std::size_t seen_ = 0;                 // of the changes of free_
  std::uint64_t forgotten_ = 0;          // when it looked at them
  Table<NodeIndex, std::int64_t> fits_;  // below zero: not of the group
  Table<TypeIndex, OfType> by_type_;
};

}  // namespace rubato::sched
