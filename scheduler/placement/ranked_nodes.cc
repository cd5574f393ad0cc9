#include "scheduler/placement/ranked_nodes.h"

#include "common/check.h"
#include "scheduler/placement/place.h"

#include <algorithm>

namespace rubato::sched {

RankedNodes::RankedNodes(const Problem& problem, const FreeNodes& free, GroupIndex group,
                         const Job& job)
    : problem_(problem),
      free_(free),
      group_(group),
      per_pod_(job.per_pod),
      fits_(problem.state().nodes.size(), -1),
      by_type_(problem.count_types()) {
  rank_all();
}

void RankedNodes::rank_all() {
  for (OfType& one : by_type_) one = {};
  for (const NodeIndex n : problem_.group(group_).admitted) {
    fits_[n] = free_[n].copies_of(per_pod_);
    OfType& own = by_type_[problem_.type_of(n)];
    if (fits_[n] > 0) own.nodes.push_back({fits_[n], n});
    own.total += fits_[n];
  }
  for (OfType& one : by_type_) std::ranges::sort(one.nodes);
  seen_ = free_.changes().size();
  forgotten_ = free_.forgotten();
}

void RankedNodes::update() {
  const std::vector<NodeIndex>& changes = free_.changes();
  if (forgotten_ != free_.forgotten() ||
      changes.size() - seen_ > problem_.group(group_).admitted.size())
    return rank_all();
  for (; seen_ < changes.size(); ++seen_) rank(changes[seen_]);
}

void RankedNodes::rank(NodeIndex node) {
  std::int64_t& before = fits_[node];
  if (before < 0) return;
  const std::int64_t now = free_[node].copies_of(per_pod_);
  if (now == before) return;
  auto& [nodes, total] = by_type_[problem_.type_of(node)];
  total += now - before;
  const auto from = std::ranges::lower_bound(nodes, Ranked{before, node});
  const auto to = std::ranges::lower_bound(nodes, Ranked{now, node});
  CHECK(before == 0 || (from != nodes.end() && from->node == node));
  if (before == 0) {
    nodes.insert(to, {now, node});
  } else if (now == 0) {
    nodes.erase(from);
  } else {
    *from = {now, node};
    to <= from ? std::rotate(to, from, from + 1) : std::rotate(from, from + 1, to);
  }
  before = now;
}

}  // namespace rubato::sched
