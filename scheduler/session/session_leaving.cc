// Nodes that are about to go (Node::leaving): who leaves them before that. The places of its pods
// come free too late for anybody, and nobody makes room for it: it goes where there is some.
#include "scheduler/model/sizes.h"
#include "scheduler/session/session.h"

#include <algorithm>

namespace rubato::sched {

bool Session::is_on_leaving_node(const Pod& pod) const {
  return has_leaving_nodes_ && pod.node && problem_.node(*pod.node).leaving;
}

// What it has there is replaced elsewhere, or given up where it keeps its minimum without. None: it
// has no more there, or may not be changed now. Else one of these nodes: it keeps all that it has
// until they go, for what it would have without is less than its minimum.
std::optional<NodeIndex> Session::leave_nodes(Entry& entry) {
  const bool may_change = entry.job->settled && entry.remove.empty() && entry.add.empty();
  if (!has_leaving_nodes_ || !may_change) return std::nullopt;
  std::vector<Pod> leaving;
  for (const Pod& pod : entry.pods)
    if (is_on_leaving_node(pod)) leaving.push_back(pod);
  // Whether pods in cells find others, the cells of their queue tell when they are lost.
  const bool is_in_cell = std::ranges::any_of(leaving, &Pod::in_cell);
  if (leaving.empty() || is_in_cell || is_confined_to_cells(entry)) return std::nullopt;
  const NodeIndex from = node_of(leaving.front());
  const Entry before = entry;
  const QuotaBook quota = quota_;
  if (!leave_pods(entry, leaving)) {
    entry = before;
    quota_ = quota;
    return from;
  }
  entry.cause = LeavesNode{problem_.node(from).id, problem_.node(from).why_not};
  return std::nullopt;
}

// False: it would be left with less than its minimum.
bool Session::leave_pods(Entry& entry, const std::vector<Pod>& leaving) {
  const Job& job = *entry.job;
  const Gpus had = entry.now;
  for (const Pod& pod : leaving) {
    entry.remove.push_back(pod.ordinal);
    entry.now -= pod.gpus;
    quota_.give_back(queue_of(entry), pod.type, pod.gpus);
  }
  std::erase_if(entry.pods, [&](const Pod& pod) { return is_on_leaving_node(pod); });
  entry.relocates = true;
  const auto size = size_at_most(job, std::min(had, entry.now + gpus_that_fit(entry)));
  const Gpus lacks = size.value_or(0) - entry.now;
  if (lacks > 0 && lacks % job.per_pod.gpus == 0 && place_up_to(entry, *size)) return true;
  const auto less = size_at_most(job, entry.now);
  if (!less) return false;
  shrink_to(entry, *less);
  return true;
}

}  // namespace rubato::sched
